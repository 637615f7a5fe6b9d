"""Sums, means and ratios over turns or episodes instead of single tokens.

Knows: tokens of a whole minibatch, and the turn and episode of each.  Knows not: rows: in which row a token is stored
changes nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, Needs
from ludus.algorithms.metrics import bounded_exp
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "turn", "episode"]
Mean = Literal["product", "geometric"]


class LeveledSettings(Choice):
    """Settings of a rule that can act on turns or episodes instead of tokens."""

    level: Level = Field(default="token")
    """What the rule acts on: each token, each turn, or each episode (what papers call a sequence)."""


def needs_of_level(settings: LeveledSettings) -> Needs:
    """All tokens of a minibatch, unless the rule acts on single tokens."""
    return Needs(minibatch=settings.level != "token")


def sum_within(values_N: Tensor, inputs: LossInputs, level: Level) -> tuple[Tensor, Tensor]:
    """For each token the sum over its turn or episode, and the number of tokens in it; both of shape (N,)."""
    if level == "token":
        return values_N, values_N.new_ones(values_N.shape)
    units_N, num_units = _units(inputs, level)
    sums_U, counts_U = sum_by_unit(values_N, units_N, num_units)
    return sums_U[units_N], counts_U.to(values_N.dtype)[units_N]


def max_within(values_N: Tensor, inputs: LossInputs, level: Level) -> Tensor:
    """For each token the largest value in its turn or episode, shape (N,)."""
    if level == "token":
        return values_N
    units_N, num_units = _units(inputs, level)
    return _table(values_N, units_N, num_units, -math.inf)[0].amax(1)[units_N]


def _units(inputs: LossInputs, level: Level) -> tuple[Tensor, int]:
    """The number of each token's turn or episode, counted from 0, and how many there are."""
    ids_N = inputs.turns_N if level == "turn" else inputs.episodes_N
    assert ids_N is not None, "a rule that needs all tokens of a minibatch gets them"
    ids_U, units_N = ids_N.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return units_N, len(ids_U)


def sum_by_unit(values_N: Tensor, units_N: Tensor, num_units: int) -> tuple[Tensor, Tensor]:
    """The sum over each unit, and how many tokens it has; both of shape (U,). units_N: numbers from 0 to U - 1, int64.

    Each unit is a row of a table, so that its sum always has the same order; scatter-adds do not have that on GPUs.
    """
    table_UL, counts_U = _table(values_N, units_N, num_units, 0.0)
    return table_UL.sum(1), counts_U


def _table(values_N: Tensor, units_N: Tensor, num_units: int, empty: float) -> tuple[Tensor, Tensor]:
    """The values of each unit as a row, filled up with `empty`; and how many there are."""
    counts_U = units_N.bincount(minlength=num_units)
    order_N = units_N.argsort(stable=True)
    sorted_N = units_N[order_N]
    starts_U = counts_U.cumsum(0) - counts_U
    places_N = order_N.new_ones(order_N.shape).cumsum(0) - 1 - starts_U[sorted_N]
    table_UL = values_N.new_full((num_units, int(counts_U.max())), empty)
    return table_UL.index_put((sorted_N, places_N), values_N[order_N]), counts_U


def mean_within(values_N: Tensor, inputs: LossInputs, level: Level) -> Tensor:
    """For each token the mean over its turn or episode, shape (N,)."""
    sums_N, counts_N = sum_within(values_N, inputs, level)
    return sums_N / counts_N


def ratio(inputs: LossInputs, level: Level, mean: Mean = "geometric") -> Tensor:
    """pi / old per token, shape (N,): each token's own, or the geometric mean or product over its turn or episode.

    Over several tokens each one's ratio has the gradient of its own logprob only, so that advantages may differ by
    token.
    Source: GSPO (arXiv 2507.18071) eq. 7 and, for the gradient, eq. 14 (GSPO-token).
    """
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    if level == "token":
        return bounded_exp(log_ratio_N)
    own_N = inputs.logprobs_N - inputs.logprobs_N.detach()
    sums_N, counts_N = sum_within(log_ratio_N.detach(), inputs, level)
    return bounded_exp((sums_N if mean == "product" else sums_N / counts_N) + own_N)
