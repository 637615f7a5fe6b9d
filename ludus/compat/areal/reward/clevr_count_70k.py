"""The names of `areal.reward.clevr_count_70k`."""

from ludus.compat.areal.verifiers import clevr_count_70k_reward_fn

__all__ = [
    "clevr_count_70k_reward_fn",
]
