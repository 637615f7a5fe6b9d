"""What is shown of every loss that compares policies, and the estimate of a divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def kl_estimate(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    """Per token an unbiased, never negative estimate of KL(pi || other): q - log q - 1 with q = other / pi.

    logprobs_N: under pi, the policy that sampled the tokens.
    Source: Schulman, "Approximating KL divergence" (2020), k3.
    """
    log_ratio_N = other_N - logprobs_N
    return log_ratio_N.exp() - log_ratio_N - 1
