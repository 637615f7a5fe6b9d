"""Advantages normalised over all episodes of a batch: REINFORCE++ and its baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Literal, Self

from pydantic import model_validator

from ludus.algorithms.base import LEAST_SPREAD, Advantages, GroupReturns, Needs, Rule, TokenAdvantages
from ludus.algorithms.estimators.group import group_advantages
from ludus.algorithms.measured import Floats
from ludus.errors import ConfigError
from ludus.settings import Choice


class WhitenedSettings(Choice):
    """Returns, optionally minus their group's mean, normalised to mean 0 and variance 1 over the batch."""

    kind: Literal["whitened"] = "whitened"
    baseline: Literal["none", "mean"] = "none"
    """mean is REINFORCE++-baseline: the group's mean is subtracted first."""
    scale: Literal["none", "std"] = "none"
    """std: what is left after the mean is divided by the group's spread first, as with AReaL's two normalisations."""
    over: Literal["tokens", "episodes"] = "tokens"
    """What mean and variance are taken over; with tokens, longer episodes weigh more."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scale == "std" and self.baseline == "none":
            raise ConfigError("scale 'std' is the spread around a group's mean: set baseline: mean, or leave scale out")
        return self


def whitened_advantages(
    groups: Sequence[GroupReturns],
    *,
    baseline: Literal["none", "mean"],
    over: Literal["tokens", "episodes"],
    scale: Literal["none", "std"] = "none",
) -> list[Advantages]:
    """A(m,t) = (x(m,t) - mean of x) / sqrt(variance of x + 1e-8), x = (G - b) / s; ddof 1.

    over: mean and variance are taken over a random turn of a random episode (`episodes`), or a random token (`tokens`).
    Turns without a token that can be trained do not count, and of the others the tokens that can.
    With token penalties and no baseline, x is the return from each token on, without the penalties of the tokens before
    it in its turn.
    Differences from the mean within rounding become 0. Source: REINFORCE++ (arXiv 2501.03262) eq. 6 and 7, over
    tokens; the return of a token as verl's `compute_reinforce_plus_plus_outcome_advantage`.
    """
    centered = group_advantages(groups, baseline=baseline, scale=scale)
    columns: list[dict[tuple[str, str], Floats]] = []
    weights: list[float] = []
    values: list[float] = []
    for each, of_group in zip(groups, centered, strict=True):
        columns.append({})
        lengths = each.lengths()
        for member, turns in of_group.items():
            known = {turn_id: value for turn_id, value in turns.items() if value is not None}
            num_counting = sum(lengths[member, turn_id] > 0 for turn_id in known)
            for turn_id, value in known.items():
                costs = each.penalties.get(turn_id, ()) if baseline == "none" else ()
                column = tuple(value + before for before in accumulate(costs[:-1], initial=0.0))
                columns[-1][member, turn_id] = column
                length = lengths[member, turn_id]
                weight = length if over == "tokens" else (length > 0) / max(num_counting, 1)
                weights += [weight / len(column)] * len(column)
                values += column
    total = math.fsum(weights) or 1.0
    mean = math.fsum(map(mul, weights, values)) / total
    variance = math.fsum(w * (value - mean) ** 2 for w, value in zip(weights, values, strict=True)) / max(total - 1, 1)
    divisor = math.sqrt(variance + 1e-8)
    # a group's values are as large as its returns until they are divided by its spread
    compared = values if scale == "std" else [value for each in groups for _, _, value in each.known()]
    nothing = LEAST_SPREAD * max(map(abs, compared), default=0.0)

    def whitened(value: float) -> float:
        return 0.0 if abs(value - mean) <= nothing else (value - mean) / divisor

    def of_turn(each: GroupReturns, turn_id: str, column: Floats) -> float | TokenAdvantages:
        made = tuple(map(whitened, column))
        return TokenAdvantages(made) if baseline == "none" and turn_id in each.penalties else made[0]

    return [
        {
            member: {
                turn_id: None if value is None else of_turn(each, turn_id, column[member, turn_id])
                for turn_id, value in turns.items()
            }
            for member, turns in each.returns.items()
        }
        for each, column in zip(groups, columns, strict=True)
    ]


WHITENED = Rule(
    WhitenedSettings,
    whitened_advantages,
    "REINFORCE++ (arXiv 2501.03262) eq. 6 and 7",
    needs=lambda settings: Needs(members=2 if settings.baseline == "mean" else 1),
    # without a baseline a group is compared with the others of the batch
    is_flat=lambda group, *, baseline, **_: baseline == "mean" and group.is_flat,
    formula="(x - mean x) / std x over {over} of the batch, x = (G - b) / s, b: {baseline}, s: {scale} of the group",
)
