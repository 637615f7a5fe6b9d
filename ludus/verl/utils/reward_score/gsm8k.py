"""As in `verl.utils.reward_score.gsm8k`."""

from ludus.rewards.sources import score_gsm8k as compute_score

__all__ = ["compute_score"]
