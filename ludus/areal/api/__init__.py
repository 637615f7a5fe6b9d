"""The names of `areal.api`."""

from ludus.agents.workflow.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.agents.workflow.rollout import EpisodeEngine as InferenceEngine
from ludus.agents.workflow.rollout import RolloutWorkflow
from ludus.rewards.wrapper import AsyncRewardWrapper

__all__ = [
    "AsyncRewardWrapper",
    "GenerationHyperparameters",
    "InferenceEngine",
    "ModelRequest",
    "ModelResponse",
    "RolloutWorkflow",
]
