"""The names of `areal.reward.gsm8k`."""

from ludus.compat.areal.verifiers import gsm8k_reward_fn

__all__ = [
    "gsm8k_reward_fn",
]
