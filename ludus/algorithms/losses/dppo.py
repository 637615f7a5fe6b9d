"""DPPO: a trust region by the divergence of the two policies instead of their ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class DppoSettings(Choice):
    """A token whose probability has moved far enough in the direction of its advantage is not moved further."""

    kind: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """Between the two policies' probabilities of the token: their difference, or the KL divergence."""
    low: float = Field(default=0.2, ge=0)
    """Bound of the divergence where the advantage is negative."""
    high: float = Field(default=0.2, ge=0)
    """Bound of the divergence where the advantage is positive."""
    cap: float = Field(default=20.0, ge=1)
    """Upper bound of the ratio."""


def dppo_loss(
    inputs: LossInputs, *, divergence: Literal["tv", "kl"], low: float, high: float, cap: float
) -> tuple[Tensor, LossMetrics]:
    """-A sg(min(r, cap)) log pi per token, 0 outside the trust region.

    Source: DPPO (arXiv 2602.04879) eq. 9 to 11, with the binary approximations of the divergences.
    """
    now_N, old_N = inputs.logprobs_N.detach(), inputs.old_logprobs_N
    p_N, q_N = now_N.exp(), old_N.exp()
    rises_N = p_N > q_N
    if divergence == "tv":
        distance_N = (p_N - q_N).abs()
    else:
        distance_N = q_N * (old_N - now_N) + (1 - q_N) * ((1 - q_N + 1e-8) / (1 - p_N + 1e-8)).log()
    is_up_N = inputs.advantages_N > 0
    is_out_N = (is_up_N & rises_N & (distance_N > high)) | (~is_up_N & (p_N < q_N) & (distance_N > low))
    ratio_N = (now_N - old_N).exp()
    loss_N = -(inputs.advantages_N * inputs.logprobs_N) * ratio_N.clamp(max=cap)
    return loss_N.masked_fill(is_out_N, 0.0), {
        "ratio_mean": ratio_N,
        "clip_fraction": is_out_N.float(),
    }


DPPO = Rule(
    DppoSettings,
    dppo_loss,
    "DPPO (arXiv 2602.04879) eq. 9 to 11",
    formula="-A sg(min(r, {cap})) log pi, 0 where {divergence}(pi, old) leaves ({low}, {high}) in the direction of A",
    metrics=sampling_metrics,
    ratio_keys=("divergence", "low", "high", "cap"),
)
