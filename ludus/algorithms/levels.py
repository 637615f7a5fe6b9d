"""Numbers of tokens taken together over a turn or an episode.

Knows: tokens of a whole minibatch, and which turn and episode each is of.  Knows not: rows; where a turn's tokens lie
changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, Needs
from ludus.algorithms.metrics import bounded_exp
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "turn", "episode"]


class LeveledSettings(Choice):
    """Settings of a rule that may take tokens together."""

    level: Level = Field(default="token")
    """What is taken together: nothing, the tokens of a turn, or those of an episode (a paper's sequence)."""


def needs_of_level(settings: LeveledSettings) -> Needs:
    """All tokens of a minibatch, unless each is taken by itself."""
    return Needs(minibatch=settings.level != "token")


def sum_within(values_N: Tensor, inputs: LossInputs, level: Level) -> tuple[Tensor, Tensor]:
    """Per token the sum over its turn or episode, and how many tokens that has; both of shape (N,)."""
    if level == "token":
        return values_N, values_N.new_ones(values_N.shape)
    ids_N = inputs.turns_N if level == "turn" else inputs.episodes_N
    assert ids_N is not None, "a rule that needs all tokens of a minibatch gets them"
    ids_U, units_N = ids_N.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    sums_U, counts_U = sum_by_unit(values_N, units_N, len(ids_U))
    return sums_U[units_N], counts_U.to(values_N.dtype)[units_N]


def sum_by_unit(values_N: Tensor, units_N: Tensor, num_units: int) -> tuple[Tensor, Tensor]:
    """The sum over each unit, and how many tokens it has; both of shape (U,). units_N: numbers from 0 to U - 1, int64.

    Each unit is a row of a table: its sum has one order, which sums by index do not have on cards.
    """
    counts_U = units_N.bincount(minlength=num_units)
    order_N = units_N.argsort(stable=True)
    sorted_N = units_N[order_N]
    starts_U = counts_U.cumsum(0) - counts_U
    places_N = order_N.new_ones(order_N.shape).cumsum(0) - 1 - starts_U[sorted_N]
    table_UL = values_N.new_zeros(num_units, int(counts_U.max()))
    return table_UL.index_put((sorted_N, places_N), values_N[order_N]).sum(1), counts_U


def mean_within(values_N: Tensor, inputs: LossInputs, level: Level) -> Tensor:
    """Per token the mean over its turn or episode, shape (N,)."""
    sums_N, counts_N = sum_within(values_N, inputs, level)
    return sums_N / counts_N


def ratio(inputs: LossInputs, level: Level) -> Tensor:
    """pi / old per token, shape (N,): each token's own, or the geometric mean over its turn or episode.

    Of a mean each token keeps the gradient of its own logprob, so that tokens may have unequal advantages.
    Source: GSPO (arXiv 2507.18071) eq. 7 and, for the gradient, eq. 14 (GSPO-token).
    """
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    if level == "token":
        return bounded_exp(log_ratio_N)
    own_N = inputs.logprobs_N - inputs.logprobs_N.detach()
    return bounded_exp(mean_within(log_ratio_N.detach(), inputs, level) + own_N)
