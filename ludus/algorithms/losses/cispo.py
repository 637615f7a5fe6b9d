"""CISPO: every token moves, and what counts at most so much is its ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class CispoSettings(Choice):
    """The ratio is a weight without gradient, bounded from above: no token is left out."""

    kind: Literal["cispo"] = "cispo"
    clip_high: float = Field(default=4.0, ge=0)
    """The ratio counts at most 1 + clip_high; there is no lower bound."""


def cispo_loss(inputs: LossInputs, *, clip_high: float) -> tuple[Tensor, LossMetrics]:
    """-sg(min(r, 1 + clip_high)) A log pi per token, r = pi / old.

    Source: MiniMax-M1 (arXiv 2506.13585) eq. 4, without the lower bound, as its authors ran it.
    """
    ratio_N = (inputs.logprobs_N.detach() - inputs.old_logprobs_N).exp()
    loss_N = -(inputs.advantages_N * inputs.logprobs_N) * ratio_N.clamp(max=1 + clip_high)
    return loss_N, {"ratio_mean": ratio_N.mean(), "clip_fraction": (ratio_N > 1 + clip_high).float().mean()}


CISPO = Rule(
    CispoSettings, cispo_loss, "MiniMax-M1 (arXiv 2506.13585) eq. 4", metrics=sampling_metrics, is_of_ratio=True
)
