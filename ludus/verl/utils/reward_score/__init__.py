"""As in `verl.utils.reward_score`."""

from ludus.rewards.sources import default_compute_score

__all__ = ["default_compute_score"]
