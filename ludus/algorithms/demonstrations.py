"""The loss of demonstrations: an expert's tokens, whose sampling probability is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.algorithms.base import LossInputs

if TYPE_CHECKING:
    from torch import Tensor

DEMONSTRATION_SOURCE = "LUFFY (arXiv 2504.14945), policy shaping"


def demonstration_loss(inputs: LossInputs, *, gamma: float) -> Tensor:
    """-A p / (p + gamma) per token, p = pi, shape (N,): the expert's probability is taken as 1, and nothing is clipped.

    Its slope by log pi is -A gamma p / (p + gamma)^2, which is largest at p = gamma: tokens that the policy finds
    unlikely move it more than likely ones. Source: LUFFY (arXiv 2504.14945), policy shaping with f(x) = x / (x +
    gamma).
    """
    probability_N = inputs.logprobs_N.exp()
    return -inputs.advantages_N * probability_N / (probability_N + gamma)
