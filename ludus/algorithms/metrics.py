"""What is shown of every loss that compares policies, and the estimate of a divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ludus.algorithms.base import LossInputs, LossMetrics

if TYPE_CHECKING:
    from torch import Tensor


def sampling_metrics(inputs: LossInputs) -> LossMetrics:
    """How far the policies are from the one that sampled: `kl` of the current, `logprob_gap_*` of the proximal one.

    Before any step on a batch the proximal policy is the trainer's own with the weights that sampled: what is left of
    the difference is the disagreement of the two computations.
    """
    current_N = inputs.logprobs_N.detach()
    first_N = current_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N.detach()
    gap_N = (first_N - inputs.sampled_logprobs_N).abs()
    return {
        "kl": kl_estimate(inputs.sampled_logprobs_N, current_N).mean(),
        "logprob_gap_mean": gap_N.mean(),
        "logprob_gap_max": gap_N.max(),
    }


KlEstimator = Literal["k1", "k2", "k3", "abs"]


def kl_estimate(logprobs_N: Tensor, other_N: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """Per token an estimate of KL(pi || other), d = log pi - log other; shape (N,).

    k1: d, whose gradient as a loss is 0 on average. k2: d^2 / 2, whose gradient is that of the KL divergence. k3:
    q - log q - 1 with q = other / pi, unbiased and never negative. abs: |d|.
    logprobs_N: under pi, the policy that sampled the tokens.
    Source: Schulman, "Approximating KL divergence" (2020); abs: verl's.
    """
    difference_N = logprobs_N - other_N
    if estimator == "k1":
        return difference_N
    if estimator == "k2":
        return difference_N**2 / 2
    return difference_N.abs() if estimator == "abs" else bounded_exp(-difference_N) + difference_N - 1


def bounded_exp(log_ratio_N: Tensor) -> Tensor:
    """The ratio of a logarithm, within exp(-20) and exp(20): one broken token must not make a gradient infinite."""
    return log_ratio_N.clamp(-20.0, 20.0).exp()
