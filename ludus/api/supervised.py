"""`ludus.train_supervised` and `ludus.train_preferences`: a configuration and rows in, a trained model out.

Knows: which part is built from which settings.  Knows not: how rows become batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ludus.algorithms.pack import Batch
from ludus.algorithms.settings import SUPERVISED, AlgorithmSettings
from ludus.api.cards.start import planned
from ludus.api.local import open_local
from ludus.api.rows import load_rows
from ludus.config import Config
from ludus.errors import UserError
from ludus.loop.preferences import preference_batches
from ludus.loop.sft import OnStep, SftSettings, supervised_batches, train_conversations
from ludus.processes.blocking import run_blocking
from ludus.rollout.mixture import Row
from ludus.text.chat import ChatText

MakeBatches = Callable[[ChatText, Sequence[Row]], Iterator[Batch]]


def train_supervised(
    config: Config,
    dataset: object,
    folder: Path | str,
    settings: SftSettings | None = None,
    *,
    on_step: OnStep | None = None,
) -> int:
    """Train the configured model on every assistant message of the rows, save it in `folder`, and return the number of
    steps.

    config: `model`, `trainer` and `seed` act; there are no rollouts and no run folder.
    dataset: rows with `messages`, and `tools` if there are any, in any form that `Trainer` takes; of rows with `prompt`
    and `completion` only the completion is trained.
    Raises UserError for a row that is no conversation, with its number, and for a folder that cannot be written.
    """
    config = planned(config)
    rules = {"row_tokens": config.trainer.row_tokens, "seed": config.seed}

    def batches(text: ChatText, rows: Sequence[Row]) -> Iterator[Batch]:
        return supervised_batches(text, rows, settings or SftSettings(), **rules)

    return _train(config, dataset, folder, batches, SUPERVISED, on_step)


def train_preferences(
    config: Config,
    dataset: object,
    folder: Path | str,
    settings: SftSettings | None = None,
    *,
    on_step: OnStep | None = None,
) -> int:
    """Train the configured model on preferences, save it in `folder`, and return the number of steps.

    config: as for `train_supervised`, and `algorithm` names the method: `{"name": "dpo"}`, or kto, or orpo.
    dataset: rows with `chosen` and `rejected`, and `prompt`, as messages or as text; for KTO also rows with `prompt`,
    `completion` and `label`.
    Raises UserError for a row that cannot be read, with its number, for a folder that cannot be written, and for an
    algorithm that does not learn from preferences.
    """
    config = planned(config)
    rules = {"row_tokens": config.trainer.row_tokens, "seed": config.seed}

    def batches(text: ChatText, rows: Sequence[Row]) -> Iterator[Batch]:
        return preference_batches(text, rows, settings or SftSettings(), algorithm=config.algorithm, **rules)

    return _train(config, dataset, folder, batches, config.algorithm, on_step)


def writable(folder: Path | str) -> Path:
    """The folder, created if need be. Raises UserError if it cannot be, rather than after hours of training."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot save a model in {str(folder)!r}: {error.strerror}; choose another folder") from error
    return Path(folder)


def _train(
    config: Config,
    dataset: object,
    folder: Path | str,
    make_batches: MakeBatches,
    algorithm: AlgorithmSettings,
    on_step: OnStep | None,
) -> int:
    rows, saved = load_rows(dataset), writable(folder)

    async def train() -> int:
        async with open_local(config) as local, local.learner(config) as learner:
            step = 0
            for step, batch in enumerate(make_batches(local.text, rows), 1):
                metrics = train_conversations(learner, batch, local.lease, algorithm)
                if on_step is not None:
                    on_step(step, metrics)
            local.save(learner, saved)
            return step

    return run_blocking(train())
