"""Parameters of answers, where `realhf.api.cli_args` has them."""

from ludus.compat.realhf.generation import GenerationHyperparameters
from ludus.compat.realhf.math_experiment import PPOHyperparameters
from ludus.compat.realhf.sample import MicroBatchSpec

__all__ = ["GenerationHyperparameters", "MicroBatchSpec", "PPOHyperparameters"]
