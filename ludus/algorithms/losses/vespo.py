"""VESPO: a smooth function of a sequence's importance weight instead of clipping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.levels import Level, LeveledSettings, needs_of_level, sum_within
from ludus.algorithms.metrics import sampling_metrics

if TYPE_CHECKING:
    from torch import Tensor

# Bounds of the log importance weight: what exceeds them is a rounding error or a broken record.
_LOWEST, _HIGHEST = math.log(1e-8), 20.0


class VespoSettings(LeveledSettings):
    """The weight of a sequence of importance w is w^k exp(lambda (1 - w))."""

    kind: Literal["vespo"] = "vespo"
    level: Level = "episode"
    power_positive: float = Field(default=2.0, ge=0)
    """k where the advantage is 0 or more."""
    rate_positive: float = Field(default=3.0, ge=0)
    """lambda where the advantage is 0 or more."""
    power_negative: float = Field(default=3.0, ge=0)
    rate_negative: float = Field(default=2.0, ge=0)


def vespo_loss(
    inputs: LossInputs,
    *,
    power_positive: float,
    rate_positive: float,
    power_negative: float,
    rate_negative: float,
    level: Level = "episode",
) -> tuple[Tensor, LossMetrics]:
    """-sg(w^k exp(lambda (1 - w))) A log pi per token, w the product of pi / old. Source: VESPO (arXiv 2602.10693)."""
    log_ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).detach().clamp(-_HIGHEST, _HIGHEST)
    log_w_N = sum_within(log_ratio_N, inputs, level)[0].clamp(_LOWEST, _HIGHEST)
    is_negative_N = inputs.advantages_N < 0
    power_N = log_w_N.new_full(log_w_N.shape, power_positive).masked_fill(is_negative_N, power_negative)
    rate_N = log_w_N.new_full(log_w_N.shape, rate_positive).masked_fill(is_negative_N, rate_negative)
    weight_N = (rate_N + power_N * log_w_N - rate_N * log_w_N.exp()).exp()
    return -weight_N * inputs.advantages_N * inputs.logprobs_N, {"ratio_mean": log_w_N.exp()}


VESPO = Rule(
    VespoSettings,
    vespo_loss,
    "VESPO (arXiv 2602.10693)",
    needs=needs_of_level,
    formula="-sg(v^k exp(l (1 - v))) A log pi, v = product of r over the {level}, k {power_positive}, "
    "l {rate_positive}; where A < 0 k {power_negative}, l {rate_negative}",
    metrics=sampling_metrics,
    ratio_keys=("power_positive", "rate_positive", "power_negative", "rate_negative", "level"),
)
