"""The names of `areal.reward.geometry3k`."""

from ludus.compat.areal.verifiers import geometry3k_reward_fn

__all__ = [
    "geometry3k_reward_fn",
]
