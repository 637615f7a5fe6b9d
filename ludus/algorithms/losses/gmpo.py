"""GMPO: the geometric mean of the clipped ratios of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.levels import Level, LeveledSettings, mean_within, needs_of_level
from ludus.algorithms.metrics import sampling_metrics

if TYPE_CHECKING:
    from torch import Tensor


class GmpoSettings(LeveledSettings):
    """Each token's log-ratio is clipped as in PPO; the loss uses their mean over the sequence."""

    kind: Literal["gmpo"] = "gmpo"
    level: Level = "episode"
    clip_low: float = Field(default=0.4, ge=0)
    """The lower bound of the log-ratio is -clip_low; it acts where the advantage is negative."""
    clip_high: float = Field(default=0.4, ge=0)
    """The upper bound of the log-ratio is clip_high; it acts where the advantage is positive."""


def gmpo_loss(
    inputs: LossInputs, *, clip_low: float, clip_high: float, level: Level = "episode"
) -> tuple[Tensor, LossMetrics]:
    """-A exp(mean of the clipped log r) per token, A the mean over the sequence. Source: GMPO (arXiv 2507.20673) eq. 4.

    With weights by episode the sum is that of the paper.
    """
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    advantages_N = mean_within(inputs.advantages_N, inputs, level)
    sign_N = advantages_N.sign()
    clipped_N = sign_N * (sign_N * log_ratio_N).minimum(sign_N * log_ratio_N.clamp(-clip_low, clip_high))
    ratio_N = mean_within(clipped_N, inputs, level).exp()
    clip_fraction = (clipped_N.detach() != log_ratio_N.detach()).float()
    return -advantages_N * ratio_N, {"ratio_mean": ratio_N.detach(), "clip_fraction": clip_fraction}


GMPO = Rule(
    GmpoSettings,
    gmpo_loss,
    "GMPO (arXiv 2507.20673) eq. 4",
    needs=needs_of_level,
    formula="-A exp(mean over the {level} of l), A: its mean over the {level}, l: min(log r, b) where A > 0, else "
    "max(log r, b), b: clip(log r, -{clip_low}, {clip_high})",
    metrics=sampling_metrics,
    ratio_keys=("clip_low", "clip_high"),
    unit=lambda settings: settings.level,
)
