"""Loads the weights that a run sampled with after a step.

Knows: a run's checkpoints, memory.  Knows not: names of weights, engines, sessions.
Invariants: they are rounded as they were when they sampled, whatever form the checkpoint has them in; nothing is loaded
that does not fit into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.api.local import INSTALL_HINT
from ludus.config import Config
from ludus.errors import BackendError, UserError
from ludus.loop.checkpoint import Checkpoint
from ludus.machine import free_memory_bytes
from ludus.models.resolve import adapter_base, resolve_model
from ludus.models.settings import ModelSettings

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

GIB = 2**30
_BESIDES_BYTES = GIB // 2  # besides its weights: activations of an engine step, and room for other programs


def load_step(config: Config, found: Checkpoint | None) -> LoadedModel:
    """The weights of the run of this configuration. found: the checkpoint of the step. None: before the first step.

    Raises UserError if they cannot be read, BackendError if they do not fit into memory.
    """
    own = config.model
    if found is None:
        return load_weights(config, own.model_copy(update={"lora": None}))
    if (found.folder / "model").is_dir():
        path = str(found.folder / "model")
        return load_weights(config, own.model_copy(update={"path": path, "lora": None}))
    return load_weights(config, own, masters=found)


def load_weights(config: Config, settings: ModelSettings, *, masters: Checkpoint | None = None) -> LoadedModel:
    """As `load_step`, for a model of these settings. masters: the checkpoint to take master weights from. None: the
    model's files have its weights."""
    try:
        from ludus.models.load import load_model
        from ludus.trainer.checkpoint import take_masters
        from ludus.trainer.rounding import Rounding
    except ModuleNotFoundError as error:
        raise UserError(f"a model of the run needs {error.name!r} to answer: {INSTALL_HINT}") from error
    _check_memory(config, settings)
    model = load_model(settings, seed=config.seed)
    if masters is not None:
        rounding = Rounding(config.trainer.publish_rounding, config.seed, model.head_weight.device)
        try:
            take_masters(model.trainable, masters.trainer_folder, rounding)
        except OSError as error:
            said = f"{masters.folder.name} cannot be read: {error}; a newer checkpoint may have taken its place"
            raise UserError(said) from error
    return model


def _check_memory(config: Config, settings: ModelSettings) -> None:
    """Raises BackendError if the weights do not fit into free memory."""
    folder = resolve_model(settings.path)
    base = adapter_base(folder)
    folders = [folder] if base is None else [folder, resolve_model(base)]
    weights = sum(path.stat().st_size for each in folders for path in each.glob("*.safetensors"))
    engine: Any = config.engine  # a local one, so it has kv_bytes
    needed, free = weights + engine.kv_bytes + _BESIDES_BYTES, free_memory_bytes()
    if free is not None and needed > free:
        raise BackendError(
            f"the model takes about {needed / GIB:.1f} GiB of memory to answer, and {free / GIB:.1f} are free: end "
            "something else, or ask on another machine, with a copy of the run's folder"
        )
