"""The loss of a critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.algorithms.base import LossMetrics

VALUE_LOSS_SOURCE = "PPO (arXiv 1707.06347) eq. 9; clipped: Schulman's baselines/ppo2, verl's compute_value_loss"


def value_loss(
    values_N: Tensor, measured_N: Tensor, targets_N: Tensor, weights_N: Tensor, *, clip_range: float | None
) -> tuple[Tensor, LossMetrics]:
    """sum_i w_i max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2, and the share of clipped tokens.

    values_N: V, with a gradient; measured_N: V_old, before the batch; targets_N: R.  clip_range: c. None: no clipping.
    Source: see VALUE_LOSS_SOURCE.
    """
    loss_N = (values_N - targets_N) ** 2
    if clip_range is None:
        return 0.5 * (weights_N * loss_N).sum(), {}
    clipped_N = (values_N.clamp(measured_N - clip_range, measured_N + clip_range) - targets_N) ** 2
    is_clipped_N = (clipped_N > loss_N).float()
    return 0.5 * (weights_N * loss_N.maximum(clipped_N)).sum(), {"clip_fraction": is_clipped_N.detach().mean()}
