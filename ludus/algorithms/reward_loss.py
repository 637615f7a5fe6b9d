"""The loss of a reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.algorithms.base import LossMetrics


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Two sequences of tokens; the first is preferred."""

    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    margin: float = 0.0
    """By how much the reward of the chosen one should be greater."""


def reward_loss(
    chosen_G: Tensor, rejected_G: Tensor, margins_G: Tensor, *, center_coefficient: float | None
) -> tuple[Tensor, LossMetrics]:
    """Mean over pairs of -log sigma(r_w - r_l - margin) + c (r_w + r_l)^2, and its metrics.

    chosen_G, rejected_G: r_w and r_l, with a gradient.  center_coefficient: c. None: there is no such term.
    Source: InstructGPT (arXiv 2203.02155) eq. 1; margin: Llama 2 (arXiv 2307.09288) eq. 2; centering term:
    arXiv 2312.09244 eq. 2.
    """
    difference_G = chosen_G - rejected_G
    loss_G = (margins_G - difference_G).logaddexp(difference_G.new_zeros(()))
    if center_coefficient is not None:
        loss_G = loss_G + center_coefficient * (chosen_G + rejected_G) ** 2
    accuracy = (difference_G.detach() > 0).float().mean()
    return loss_G.mean(), {"accuracy": accuracy, "margin": difference_G.detach().mean()}
