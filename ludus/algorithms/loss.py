"""Losses as functions of tensors: each returns the loss to differentiate and what to show of it.

Glossary. pi: policy under training; mu: policy that sampled; prox: policy that the ratio is taken to and clipped
around; A: advantage; w: share of a token in the loss of the optimizer batch (they sum to 1 over a batch normalised
by tokens), so losses of micro-batches add up. N: trained tokens. Metrics are means over these tokens, unless their
name ends in `_max`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.algorithms.correction import truncated_importance_weights

LossMetrics = dict[str, Tensor]


def policy_loss(
    logprobs_N: Tensor,
    sampled_logprobs_N: Tensor,
    prox_logprobs_N: Tensor | None,
    advantages_N: Tensor,
    weights_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    tis_cap: float | None,
    kl: tuple[Tensor, float] | None = None,
) -> tuple[Tensor, LossMetrics]:
    """sum_i w_i (-min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i) c_i + beta kl_i), and its metrics.

    With prox: r = pi / prox and c = min(prox / mu, tis_cap) (1 if tis_cap is None).
    Without:   r = pi / mu and c = 1.
    kl: logprobs of a reference policy, shape (N,), and beta.
    Source: PPO (arXiv 1707.06347) eq. 7; unequal bounds: DAPO (arXiv 2503.14476) eq. 10; decoupled prox: (arXiv
    2110.00641) eq. 3; kl_i: DeepSeekMath (arXiv 2402.03300) eq. 4.
    """
    old_N = sampled_logprobs_N if prox_logprobs_N is None else prox_logprobs_N.detach()
    ratio_N = torch.exp(logprobs_N - old_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    unclipped_gain_N, clipped_gain_N = ratio_N * advantages_N, clipped_N * advantages_N
    loss_N = -torch.minimum(unclipped_gain_N, clipped_gain_N)
    if prox_logprobs_N is not None and tis_cap is not None:
        loss_N = loss_N * truncated_importance_weights(old_N, sampled_logprobs_N, cap=tis_cap)
    metrics = {}
    if kl is not None:
        reference_N, beta = kl
        kl_N = kl_estimate(logprobs_N, reference_N)
        loss_N = loss_N + beta * kl_N
        metrics["kl_reference"] = kl_N.detach().mean()
    # before any step on this batch prox is the trainer's own policy with the weights that sampled: what is left of
    # the difference is the disagreement of the two computations
    current_N = logprobs_N.detach()
    gap_N = ((current_N if prox_logprobs_N is None else old_N) - sampled_logprobs_N).abs()
    metrics |= {
        "kl": kl_estimate(sampled_logprobs_N, current_N).mean(),
        "ratio_mean": ratio_N.detach().mean(),
        "clip_fraction": (clipped_gain_N < unclipped_gain_N).float().mean(),
        "logprob_gap_mean": gap_N.mean(),
        "logprob_gap_max": gap_N.max(),
    }
    return (weights_N * loss_N).sum(), metrics


def cross_entropy(logprobs_N: Tensor, weights_N: Tensor) -> tuple[Tensor, LossMetrics]:
    """sum_i -w_i logprob_i, the loss of supervised training, and the mean negative log-likelihood."""
    return -(weights_N * logprobs_N).sum(), {"nll": -logprobs_N.detach().mean()}


def kl_estimate(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    """Per token an unbiased, never negative estimate of KL(pi || other): q - log q - 1 with q = other / pi.

    logprobs_N: under pi, the policy that sampled the tokens.
    Source: Schulman, "Approximating KL divergence" (2020), k3.
    """
    log_ratio_N = other_N - logprobs_N
    return torch.exp(log_ratio_N) - log_ratio_N - 1
