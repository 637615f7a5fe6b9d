"""The names of `areal.api.engine_api` that a workflow uses."""

from ludus.compat.areal.rollout import EpisodeEngine as InferenceEngine

__all__ = [
    "InferenceEngine",
]
