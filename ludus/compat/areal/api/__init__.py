"""The names of `areal.api`."""

from ludus.compat.areal.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.compat.areal.rollout import EpisodeEngine as InferenceEngine
from ludus.compat.areal.rollout import RolloutWorkflow
from ludus.rewards.wrapper import AsyncRewardWrapper

__all__ = [
    "AsyncRewardWrapper",
    "GenerationHyperparameters",
    "InferenceEngine",
    "ModelRequest",
    "ModelResponse",
    "RolloutWorkflow",
]
