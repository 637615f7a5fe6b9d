"""DRO: the policy gradient with a squared log-ratio as penalty, which keeps the policy near the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Needs, Rule
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class DroSettings(Choice):
    """No ratio and no clipping, but a quadratic penalty."""

    kind: Literal["dro"] = "dro"
    beta: float = Field(gt=0)
    """Weight of the penalty."""


def dro_loss(inputs: LossInputs, *, beta: float) -> tuple[Tensor, LossMetrics]:
    """-(A log pi - beta / 2 (log r)^2) per token. Source: DRO (arXiv 2405.19107) eq. 9, token by token."""
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    loss_N = beta / 2 * log_ratio_N**2 - inputs.advantages_N * inputs.logprobs_N
    return loss_N, {"ratio_mean": log_ratio_N.detach().exp()}


DRO = Rule(
    DroSettings,
    dro_loss,
    "DRO (arXiv 2405.19107) eq. 9",
    needs=lambda _: Needs(flat_groups=True),
    formula="-(A log pi - {beta} / 2 (log r)^2)",
    metrics=sampling_metrics,
    ratio_keys=("beta",),
)
