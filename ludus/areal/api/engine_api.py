"""The names of `areal.api.engine_api` that a workflow uses."""

from ludus.agents.workflow.rollout import EpisodeEngine as InferenceEngine

__all__ = [
    "InferenceEngine",
]
