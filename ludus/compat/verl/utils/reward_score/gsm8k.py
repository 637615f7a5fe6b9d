"""As in `verl.utils.reward_score.gsm8k`."""

from ludus.compat.verl.data_sources import score_gsm8k as compute_score

__all__ = ["compute_score"]
