"""The names of `areal.api`."""

from ludus.agents.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.agents.rollout_workflow import EpisodeEngine as InferenceEngine
from ludus.agents.rollout_workflow import RolloutWorkflow
from ludus.rewards.wrapper import AsyncRewardWrapper

__all__ = [
    "AsyncRewardWrapper",
    "GenerationHyperparameters",
    "InferenceEngine",
    "ModelRequest",
    "ModelResponse",
    "RolloutWorkflow",
]
