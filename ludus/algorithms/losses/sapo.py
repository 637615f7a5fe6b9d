"""SAPO: a smooth gate instead of clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.levels import Level, LeveledSettings, needs_of_level, ratio
from ludus.algorithms.metrics import sampling_metrics

if TYPE_CHECKING:
    from torch import Tensor


class SapoSettings(LeveledSettings):
    """The gradient fades as the ratio moves away from 1; the temperature says how fast."""

    kind: Literal["sapo"] = "sapo"
    tau_positive: float = Field(default=1.0, gt=0)
    """Temperature where the advantage is positive."""
    tau_negative: float = Field(default=1.05, gt=0)
    """Temperature elsewhere."""


def sapo_loss(
    inputs: LossInputs, *, tau_positive: float, tau_negative: float, level: Level = "token"
) -> tuple[Tensor, LossMetrics]:
    """-A sigmoid(tau (r - 1)) 4 / tau per token, r = pi / old. Source: SAPO (arXiv 2511.20347) eq. 4 and 5."""
    ratio_N = ratio(inputs, level)
    tau_N = inputs.advantages_N.new_full(ratio_N.shape, tau_negative).masked_fill(inputs.advantages_N > 0, tau_positive)
    loss_N = -inputs.advantages_N * (tau_N * (ratio_N - 1)).sigmoid() * 4 / tau_N
    return loss_N, {"ratio_mean": ratio_N.detach()}


SAPO = Rule(
    SapoSettings,
    sapo_loss,
    "SAPO (arXiv 2511.20347) eq. 4 and 5",
    needs=needs_of_level,
    formula="-A sigmoid(tau (r - 1)) 4 / tau, tau {tau_positive} where A > 0, else {tau_negative}",
    metrics=sampling_metrics,
    ratio_keys=("tau_positive", "tau_negative", "level"),
)
