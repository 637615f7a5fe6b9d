"""Metrics of losses that compare policies, and estimators of the KL divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from ludus.algorithms.base import LossInputs, LossMetrics
from ludus.algorithms.pack import DEMONSTRATED, REPLAYED

if TYPE_CHECKING:
    from torch import Tensor

    Number = TypeVar("Number", Tensor, float)

# exp(20) is 5e8: one broken token must not make a gradient infinite.
_LARGEST_LOG_RATIO = 20.0


def sampling_metrics(inputs: LossInputs) -> LossMetrics:
    """How far the policies are from the one that sampled: `kl` of the current, `logprob_gap_*` of the one that the
    batch began with if its logprobs were computed, else of the current too.

    Before any step on a batch the trainer's own policy has the weights that sampled: what is left of the difference is
    the disagreement of the two computations.
    """
    current_N = inputs.logprobs_N.detach()
    first_N = current_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N.detach()
    gap_N = (first_N - inputs.sampled_logprobs_N).abs()
    return {
        "kl": kl_estimate(inputs.sampled_logprobs_N, current_N).mean(),
        "logprob_gap_mean": gap_N.mean(),
        "logprob_gap_max": gap_N.max(),
    }


def demonstration_metrics(inputs: LossInputs) -> LossMetrics:
    """Share and mean probability of demonstrations' tokens, as means over all tokens. Empty if there are none."""
    if inputs.origins_N is None or not (inputs.origins_N == DEMONSTRATED).any():
        return {}
    is_given_N = (inputs.origins_N == DEMONSTRATED).float()
    probability_N = inputs.logprobs_N.detach().exp() * is_given_N
    return {"demonstration_share": is_given_N.mean(), "demonstration_probability": probability_N.mean()}


def replay_metrics(inputs: LossInputs) -> LossMetrics:
    """Share of replayed tokens and the first two moments of their importance weight (weights before the batch over the
    sampler), as means over all tokens. Empty if there are none."""
    if inputs.origins_N is None or not (inputs.origins_N == REPLAYED).any():
        return {}
    first_N = inputs.logprobs_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N
    is_replayed_N = (inputs.origins_N == REPLAYED).float()
    weight_N = bounded_exp(first_N.detach() - inputs.sampled_logprobs_N) * is_replayed_N
    moments = {"replay_weight": weight_N.mean(), "replay_weight_squared": weight_N.square().mean()}
    return {"replay_share": is_replayed_N.mean(), **moments}


KlEstimator = Literal["k1", "k2", "k3", "abs"]


def kl_estimate(logprobs_N: Tensor, other_N: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """An estimate of KL(pi || other) from each token, d = log pi - log other; shape (N,).

    k1: d, whose gradient as a loss is 0 on average. k2: d^2 / 2, whose gradient is that of the KL divergence. k3:
    q - log q - 1 with q = other / pi, unbiased and never negative. abs: |d|.
    logprobs_N: under pi, the policy that sampled the tokens.
    Source: Schulman, "Approximating KL divergence" (2020); abs: verl's.
    """
    return _estimate(logprobs_N - other_N, estimator, bounded_exp)


def kl_of_token(difference: float, estimator: KlEstimator) -> float:
    """As `kl_estimate`, of one token. difference: log pi - log other."""
    bound = _LARGEST_LOG_RATIO
    return _estimate(difference, estimator, lambda log_ratio: math.exp(max(min(log_ratio, bound), -bound)))


def _estimate(difference: Number, estimator: KlEstimator, exp: Callable[[Number], Number]) -> Number:
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference * difference / 2
    return abs(difference) if estimator == "abs" else exp(-difference) + difference - 1


def bounded_exp(log_ratio_N: Tensor) -> Tensor:
    """exp of a log-ratio, bounded to [exp(-20), exp(20)]."""
    return log_ratio_N.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
