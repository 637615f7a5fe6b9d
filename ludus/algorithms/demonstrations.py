"""What is learned from the tokens of experts, who are no policy: nobody knows how likely they were to say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.algorithms.base import LossInputs

if TYPE_CHECKING:
    from torch import Tensor

DEMONSTRATION_SOURCE = "LUFFY (arXiv 2504.14945), policy shaping"


def demonstration_loss(inputs: LossInputs, *, gamma: float) -> Tensor:
    """-A p / (p + gamma) per token, p = pi, shape (N,): the expert's probability counts as 1, and nothing is clipped.

    Its slope by log pi is -A gamma p / (p + gamma)^2, which is largest at p = gamma: what the policy does not know yet
    moves it more than what it knows. Source: LUFFY (arXiv 2504.14945), policy shaping with f(x) = x / (x + gamma).
    """
    probability_N = inputs.logprobs_N.exp()
    return -inputs.advantages_N * probability_N / (probability_N + gamma)
