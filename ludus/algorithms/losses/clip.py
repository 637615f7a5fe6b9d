"""PPO's clipped ratio; clip-higher, dual clip and, over sequences, GSPO are settings of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.levels import Level, LeveledSettings, Mean, needs_of_level, ratio
from ludus.algorithms.metrics import sampling_metrics

if TYPE_CHECKING:
    from torch import Tensor


class ClipSettings(LeveledSettings):
    """The clipped surrogate loss of PPO and GRPO."""

    kind: Literal["clip"] = "clip"
    clip_low: float = Field(default=0.2, ge=0)
    """The lower bound of the ratio is 1 - clip_low; it acts where the advantage is negative."""
    clip_high: float = Field(default=0.2, ge=0)
    """The upper bound of the ratio is 1 + clip_high; it acts where the advantage is positive."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper bound of the ratio where the advantage is negative. None: there is none."""
    mean: Mean = "geometric"
    """How the ratios of a turn or an episode are combined: their geometric mean, or their product."""


def clip_loss(
    inputs: LossInputs,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    level: Level = "token",
    mean: Mean = "geometric",
) -> tuple[Tensor, LossMetrics]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, r = pi / old; for A < 0 at most -dual_clip A.

    Source: PPO (arXiv 1707.06347) eq. 7; unequal bounds: DAPO (arXiv 2503.14476) eq. 10; dual clip: arXiv 1912.09729
    eq. 5; over a sequence: GSPO (arXiv 2507.18071) eq. 5; the product over it: PPO with a sequence as one action.
    """
    ratio_N = ratio(inputs, level, mean)
    gain_N = ratio_N * inputs.advantages_N
    clipped_gain_N = ratio_N.clamp(1 - clip_low, 1 + clip_high) * inputs.advantages_N
    metrics = {"ratio_mean": ratio_N.detach(), "clip_fraction": (clipped_gain_N < gain_N).float()}
    loss_N = -gain_N.minimum(clipped_gain_N)
    if dual_clip is not None:
        bound_N = -dual_clip * inputs.advantages_N
        loss_N = loss_N.minimum(bound_N).where(inputs.advantages_N < 0, loss_N)
    return loss_N, metrics


CLIP = Rule(
    ClipSettings,
    clip_loss,
    "PPO (arXiv 1707.06347) eq. 7; unequal bounds: DAPO (arXiv 2503.14476) eq. 10; dual clip: arXiv 1912.09729 eq. 5; "
    "over a turn or an episode: GSPO (arXiv 2507.18071) eq. 5",
    needs=needs_of_level,
    formula="-min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A)",
    metrics=sampling_metrics,
    ratio_keys=("clip_low", "clip_high", "dual_clip", "level", "mean"),
)
