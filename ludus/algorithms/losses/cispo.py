"""CISPO: the ratio is clipped, not the gradient, so that every token keeps one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.levels import Level, LeveledSettings, needs_of_level, ratio
from ludus.algorithms.metrics import sampling_metrics

if TYPE_CHECKING:
    from torch import Tensor


class CispoSettings(LeveledSettings):
    """The ratio is a bounded weight without gradient: no token is left out."""

    kind: Literal["cispo"] = "cispo"
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """The lower bound of the ratio is 1 - clip_low. None: there is none."""
    clip_high: float = Field(default=4.0, ge=0)
    """The upper bound of the ratio is 1 + clip_high."""


def cispo_loss(
    inputs: LossInputs, *, clip_high: float, clip_low: float | None = None, level: Level = "token"
) -> tuple[Tensor, LossMetrics]:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi per token, r = pi / old.

    Source: MiniMax-M1 (arXiv 2506.13585) eq. 4; its authors ran it without the lower bound.
    """
    ratio_N = ratio(inputs, level).detach()
    bounded_N = ratio_N.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    loss_N = -(inputs.advantages_N * inputs.logprobs_N) * bounded_N
    return loss_N, {"ratio_mean": ratio_N, "clip_fraction": (bounded_N != ratio_N).float()}


def _formula(settings: CispoSettings) -> str:
    bounded = "min(r, 1 + {clip_high})" if settings.clip_low is None else "clip(r, 1 - {clip_low}, 1 + {clip_high})"
    return f"-sg({bounded}) A log pi"


CISPO = Rule(
    CispoSettings,
    cispo_loss,
    "MiniMax-M1 (arXiv 2506.13585) eq. 4",
    needs=needs_of_level,
    formula=_formula,
    metrics=sampling_metrics,
    ratio_keys=("clip_low", "clip_high", "level"),
)
