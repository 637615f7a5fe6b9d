"""Parameters of answers, where `realhf.api.cli_args` has them."""

from ludus.agents.queues.generation import GenerationHyperparameters
from ludus.agents.queues.sample import MicroBatchSpec
from ludus.api.math_experiment import PPOHyperparameters

__all__ = ["GenerationHyperparameters", "MicroBatchSpec", "PPOHyperparameters"]
