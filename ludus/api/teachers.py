"""Opens the teacher of a run that its settings describe.

Knows: how each kind is built, what a run's folder holds.  Knows not: how tokens are scored, or what for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.api.local import LocalModel
from ludus.config import Config, load_config
from ludus.engines.kind import ServerKind, kind_of
from ludus.engines.lease import ComputeLease
from ludus.engines.table import ENGINES
from ludus.errors import ConfigError, UserError
from ludus.loop.checkpoint import Checkpoint, whole_checkpoint
from ludus.models.settings import ModelSettings
from ludus.rollout.mixture import Source, row_named
from ludus.runs.folder import read_config, trained_model
from ludus.runs.store import RunStore
from ludus.teachers.base import Scorer
from ludus.teachers.engine import EngineScorer
from ludus.teachers.hints import Hints
from ludus.teachers.settings import (
    ModelTeacherSettings,
    PolicyTeacherSettings,
    ScoringSettings,
    ServerTeacherSettings,
)
from ludus.teachers.teacher import Teacher
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

POLICY = "the run's own model"


@asynccontextmanager
async def open_teacher(config: Config, local: LocalModel, sources: Sequence[Source]) -> AsyncIterator[Teacher | None]:
    """The teacher that scores what the run samples, until the block ends. None: there is none.

    sources: the datasets that are played; their rows hold the hints.
    Raises UserError if the teacher's tokenizer differs from the model's, or if it cannot be loaded; BackendError if it
    cannot be reached.
    """
    settings = config.teacher
    if not isinstance(settings, ScoringSettings):
        yield None
        return
    if settings.hint is not None and not sources:
        raise ConfigError("teacher.hint shows a column of the row that is played, and here no rows are; leave it out")
    policy = EngineScorer((local.engine,), POLICY, is_own=False)
    scorer: Scorer = policy
    if isinstance(settings, ServerTeacherSettings):
        scorer = await _servers(settings, local.text.tokenizer)
    elif isinstance(settings, ModelTeacherSettings):
        scorer = await asyncio.to_thread(_loaded, settings, local)
    elif isinstance(settings, PolicyTeacherSettings) and settings.weights == "first":
        model = config.model.model_copy(update={"lora": None})
        scorer = await asyncio.to_thread(_scorer_of, model, None, local, config.trainer.row_tokens)
    hints = None if settings.hint is None else Hints(settings.hint, local.text, partial(row_named, sources))
    try:
        yield Teacher(scorer, policy, hints)
    finally:
        await scorer.close()


async def _servers(settings: ServerTeacherSettings, tokenizer: Tokenizer) -> EngineScorer:
    kind = kind_of(ENGINES[settings.engine](kind=settings.engine))
    assert isinstance(kind, ServerKind), "settings name kinds that are servers"
    async with AsyncExitStack() as opened:
        engines = []
        for url in settings.urls:
            try:
                engines.append(await asyncio.to_thread(kind.connect, url, tokenizer, api_key=settings.api_key))
            except UserError as error:
                raise UserError(f"the teacher at {url} cannot be used: {error}") from error
            opened.push_async_callback(engines[-1].close)
        opened.pop_all()
    return EngineScorer(engines, f"the teacher at {', '.join(settings.urls)}", is_own=True)


def _loaded(settings: ModelTeacherSettings, local: LocalModel) -> Scorer:
    model = ModelSettings(path=settings.path, dtype=settings.dtype, device=settings.device)
    folder, found = Path(settings.path).expanduser(), None
    if RunStore.is_there(folder):
        path, found = _of_run(folder)
        model = model.model_copy(update=path)
    return _scorer_of(model, found, local, settings.row_tokens)


def _of_run(folder: Path) -> tuple[dict[str, Any], Checkpoint | None]:
    """Model settings with which a run's model is loaded, and the checkpoint to take its weights from. None: the model's
    files have them.

    Raises UserError if the run has neither ended nor saved a checkpoint.
    """
    if (folder / "model").is_dir():
        return {"path": str(trained_model(folder))}, None
    found = whole_checkpoint(folder / "checkpoints")
    if found is None:
        raise UserError(f"teacher.path: the run {str(folder)!r} has no model and no checkpoint yet; train it first")
    read_config(folder)
    began_with = load_config(folder / "config.yaml").model
    return {"path": began_with.path, "lora": began_with.lora}, found


def _scorer_of(settings: ModelSettings, found: Checkpoint | None, local: LocalModel, row_tokens: int) -> Scorer:
    """A scorer that loads a model in this process. found: the checkpoint to take its weights from. None: its files have
    them."""
    from ludus.models.load import load_model
    from ludus.teachers.model import ModelScorer

    model = load_model(settings)
    difference = local.text.tokenizer.difference(Tokenizer.load(model.folder))
    if difference is not None:
        raise UserError(
            f"{settings.path!r} cannot teach this model: {difference}; a teacher needs the tokenizer of its pupil"
        )
    if found is not None:
        _take_checkpoint(model, found)
    return ModelScorer(model, lease=local.lease, row_tokens=row_tokens)


def _take_checkpoint(model: LoadedModel, found: Checkpoint) -> None:
    from ludus.trainer.settings import TrainerSettings
    from ludus.trainer.step import ModelTrainer

    trainer = ModelTrainer(model, TrainerSettings(), lease=ComputeLease())
    if found.has_trainer:
        trainer.load(found.trainer_folder)
    else:
        trainer.take_weights(found.folder / "model")
