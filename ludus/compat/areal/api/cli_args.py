"""The names of `areal.api.cli_args` that a training script uses; every configuration is `ludus.Config`."""

from ludus.compat.areal.generation import GenerationHyperparameters
from ludus.compat.areal.script import load_expr_config
from ludus.config import Config as GRPOConfig
from ludus.config import Config as PPOConfig

__all__ = [
    "GRPOConfig",
    "GenerationHyperparameters",
    "PPOConfig",
    "load_expr_config",
]
