"""The clipped ratio of PPO; unequal bounds are DAPO's clip-higher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class ClipSettings(Choice):
    """The ratio is clipped where it gains: PPO's loss, and GRPO's."""

    kind: Literal["clip"] = "clip"
    clip_low: float = Field(default=0.2, ge=0)
    """The ratio counts at least 1 - clip_low where that gains."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio counts at most 1 + clip_high where that gains."""


def clip_loss(inputs: LossInputs, *, clip_low: float, clip_high: float) -> tuple[Tensor, LossMetrics]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, r = pi / old.

    Source: PPO (arXiv 1707.06347) eq. 7; unequal bounds: DAPO (arXiv 2503.14476) eq. 10.
    """
    ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
    gain_N = ratio_N * inputs.advantages_N
    clipped_gain_N = ratio_N.clamp(1 - clip_low, 1 + clip_high) * inputs.advantages_N
    metrics = {"ratio_mean": ratio_N.detach().mean(), "clip_fraction": (clipped_gain_N < gain_N).float().mean()}
    return -gain_N.minimum(clipped_gain_N), metrics


CLIP = Rule(
    ClipSettings,
    clip_loss,
    "PPO (arXiv 1707.06347) eq. 7; unequal bounds: DAPO (arXiv 2503.14476) eq. 10",
    metrics=sampling_metrics,
    is_of_ratio=True,
)
