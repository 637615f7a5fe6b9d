"""Clip-Cov and KL-Cov: keep the entropy from collapsing by restraining the few tokens of largest covariance between
logprob and advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Needs, Rule
from ludus.algorithms.levels import ratio
from ludus.algorithms.losses.clip import clip_loss
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class ClipCovSettings(Choice):
    """PPO's loss without some of the tokens of large covariance."""

    kind: Literal["clip_cov"] = "clip_cov"
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of all tokens that is left out, at least one token."""
    low: float = 1.0
    """They are drawn among tokens with a covariance above this."""
    high: float = 5.0
    """And below this."""


class KlCovSettings(Choice):
    """The ratio without a bound, and a penalty on the tokens of largest covariance."""

    kind: Literal["kl_cov"] = "kl_cov"
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of all tokens that is penalised, at least one token."""
    coef: float = Field(default=0.1, gt=0)
    """Weight of the penalty |log r|."""


def clip_cov_loss(
    inputs: LossInputs, *, clip_low: float, clip_high: float, share: float, low: float, high: float
) -> tuple[Tensor, LossMetrics]:
    """PPO's loss per token, and 0 for the tokens that are drawn. Source: arXiv 2505.22617 eq. 10 and 11."""
    loss_N, metrics = clip_loss(inputs, clip_low=clip_low, clip_high=clip_high)
    covariance_N = _covariances(inputs)
    ratio_N = ratio(inputs, "token").detach()
    is_clipped_N = loss_N.detach() != -ratio_N * inputs.advantages_N
    could_be_N = (covariance_N > low) & (covariance_N < high) & ~is_clipped_N
    # the draw hashes a token's order and logprob, so that packing, ranks and a resume do not change it
    numbers_N = inputs.sampled_logprobs_N * 78.233 + _order(inputs).argsort() * 12.9898
    lot_N = (numbers_N.sin() * 43758.5453).frac().abs().masked_fill(~could_be_N, -1.0)
    drawn = _largest(lot_N, inputs, min(_number(inputs, share), int(could_be_N.sum())))
    kept_N = loss_N.new_ones(loss_N.shape).index_fill(0, drawn, 0.0)
    return loss_N * kept_N, {**metrics, "left_out_fraction": 1 - kept_N}


def kl_cov_loss(inputs: LossInputs, *, share: float, coef: float) -> tuple[Tensor, LossMetrics]:
    """-r A per token, with + coef |log r| where the covariance is largest. Source: arXiv 2505.22617 eq. 12 and 13."""
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    largest = _largest(_covariances(inputs), inputs, _number(inputs, share))
    penalised_N = log_ratio_N.new_zeros(log_ratio_N.shape).index_fill(0, largest, coef)
    ratio_N = ratio(inputs, "token")
    return penalised_N * log_ratio_N.abs() - ratio_N * inputs.advantages_N, {"ratio_mean": ratio_N.detach()}


def _covariances(inputs: LossInputs) -> Tensor:
    """Each token's term in the covariance of advantage and logprob over the minibatch, without gradient."""
    logprobs_N, advantages_N = inputs.logprobs_N.detach(), inputs.advantages_N
    return (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())


def _order(inputs: LossInputs) -> Tensor:
    """Indices of the tokens turn by turn and, in a turn, in the order of sampling, whichever rows they are in."""
    assert inputs.turns_N is not None, "a rule that needs all tokens of a minibatch gets them"
    return inputs.turns_N.argsort(stable=True)


def _largest(values_N: Tensor, inputs: LossInputs, count: int) -> Tensor:
    """Indices of the `count` largest values; of equal ones the first in `_order`."""
    order = _order(inputs)
    return order[values_N[order].argsort(descending=True, stable=True)[:count]]


def _number(inputs: LossInputs, share: float) -> int:
    return max(1, int(share * len(inputs.logprobs_N)))


CLIP_COV = Rule(
    ClipCovSettings,
    clip_cov_loss,
    "arXiv 2505.22617 eq. 10 and 11",
    needs=lambda _: Needs(minibatch=True, flat_groups=True),
    formula="-min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A), 0 for a share of {share} drawn among the tokens "
    "whose covariance of A and log pi lies in ({low}, {high})",
    metrics=sampling_metrics,
    ratio_keys=("clip_low", "clip_high"),
)
KL_COV = Rule(
    KlCovSettings,
    kl_cov_loss,
    "arXiv 2505.22617 eq. 12 and 13",
    needs=lambda _: Needs(minibatch=True, flat_groups=True),
    formula="-r A, + {coef} |log r| for the share of {share} of largest covariance of A and log pi",
    metrics=sampling_metrics,
    ratio_keys=("share", "coef"),
)
