"""The names of `art.dev`; each makes a mapping of what it is given."""

from ludus.compat.art.internal import internal_model_config as InternalModelConfig  # noqa: N812

InitArgs = EngineArgs = PeftArgs = TrainerArgs = dict

__all__ = ["EngineArgs", "InitArgs", "InternalModelConfig", "PeftArgs", "TrainerArgs"]
