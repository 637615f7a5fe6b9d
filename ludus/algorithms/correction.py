"""Correction for tokens that were sampled by another policy than the one under training."""

from __future__ import annotations

import torch
from torch import Tensor


def truncated_importance_weights(logprobs_N: Tensor, sampled_logprobs_N: Tensor, *, cap: float) -> Tensor:
    """min(pi / mu, cap) for every token, shape (N,), without gradient.

    logprobs_N: of the sampled tokens under the trainer's policy pi; sampled_logprobs_N: under the sampler's mu.
    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al. 2025), token-level
    truncated importance sampling; the truncation is that of IMPALA (arXiv 1802.01561) eq. 1.
    """
    return torch.exp(logprobs_N.detach() - sampled_logprobs_N).clamp(max=cap)
