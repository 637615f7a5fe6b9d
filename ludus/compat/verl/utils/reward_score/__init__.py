"""As in `verl.utils.reward_score`."""

from ludus.compat.verl.data_sources import default_compute_score

__all__ = ["default_compute_score"]
