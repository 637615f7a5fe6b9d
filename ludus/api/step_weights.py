"""The weights that a run samples with after a step, loaded anew.

Knows: a run's checkpoints, memory.  Knows not: names of weights, engines, sessions.
Invariants: they are rounded as they were when they sampled, whatever a checkpoint holds of them; where memory does not
suffice, nothing is loaded.
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
_BESIDES_BYTES = GIB // 2  # what a model takes besides its weights: a step's activations, and room for others


def load_step(config: Config, found: Checkpoint | None) -> LoadedModel:
    """Of a run's own configuration. found: after whose step. None: before the first.

    Raises UserError where they cannot be read, BackendError where memory does not suffice.
    """
    own = config.model
    if found is None:
        return load_weights(config, own.model_copy(update={"lora": None}))
    if (found.folder / "model").is_dir():
        path = str(found.folder / "model")
        return load_weights(config, own.model_copy(update={"path": path, "lora": None}))
    return load_weights(config, own, masters=found)


def load_weights(config: Config, settings: ModelSettings, *, masters: Checkpoint | None = None) -> LoadedModel:
    """As `load_step`, of a model of these settings. masters: takes its weights from there. None: they are its own."""
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
    """Raises BackendError where the weights would not fit into what is free."""
    folder = resolve_model(settings.path)
    base = adapter_base(folder)
    folders = [folder] if base is None else [folder, resolve_model(base)]
    weights = sum(path.stat().st_size for each in folders for path in each.glob("*.safetensors"))
    engine: Any = config.engine  # a local one, which has pages
    needed, free = weights + engine.kv_bytes + _BESIDES_BYTES, free_memory_bytes()
    if free is not None and needed > free:
        raise BackendError(
            f"the model takes about {needed / GIB:.1f} GiB of memory to answer, and {free / GIB:.1f} are free: end "
            "something else, or ask on another machine, with a copy of the run's folder"
        )
