"""The names of `areal.api.reward_api`."""

from ludus.rewards.wrapper import AsyncRewardWrapper

__all__ = [
    "AsyncRewardWrapper",
]
