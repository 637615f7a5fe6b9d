"""The names of `areal.api.engine_api` that a workflow uses."""

from ludus.agents.rollout_workflow import EpisodeEngine as InferenceEngine

__all__ = [
    "InferenceEngine",
]
