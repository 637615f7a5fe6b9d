"""Advantages normalised over all episodes of a batch: REINFORCE++ and its baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule
from ludus.algorithms.estimators.group import LEAST_SPREAD, group_advantages
from ludus.settings import Choice


class WhitenedSettings(Choice):
    """Returns, or what is above their group's mean, with mean 0 and variance 1 over the batch."""

    kind: Literal["whitened"] = "whitened"
    baseline: Literal["none", "mean"] = "none"
    """mean is REINFORCE++-baseline: the group's mean is taken off first."""
    over: Literal["tokens", "episodes"] = "tokens"
    """What mean and variance are taken over; tokens weigh an episode by its length."""


def whitened_advantages(
    groups: Sequence[GroupReturns], *, baseline: Literal["none", "mean"], over: Literal["tokens", "episodes"]
) -> list[Returns]:
    """A(m,t) = (x(m,t) - mean of x) / sqrt(variance of x + 1e-8), x = G - b; ddof 1.

    over: `episodes` draws an episode of the batch, then one of its turns; `tokens` draws a token.
    What differs from the mean by no more than rounding is 0. Source: REINFORCE++ (arXiv 2501.03262) eq. 6 and 7, over
    tokens.
    """
    centered = [
        GroupReturns(each.group, advantages)
        for each, advantages in zip(groups, group_advantages(groups, baseline=baseline, scale="none"), strict=True)
    ]
    weighed: list[tuple[float, float]] = []
    for each in centered:
        lengths = each.lengths() if over == "tokens" else {}
        num_turns = {
            member: sum(value is not None for value in turns.values()) for member, turns in each.returns.items()
        }
        weighed += [
            (lengths[member, turn_id] if over == "tokens" else 1 / num_turns[member], value)
            for member, turn_id, value in each.known()
        ]
    total = math.fsum(weight for weight, _ in weighed) or 1.0
    mean = math.fsum(weight * value for weight, value in weighed) / total
    variance = math.fsum(weight * (value - mean) ** 2 for weight, value in weighed) / max(total - 1, 1)
    divisor = math.sqrt(variance + 1e-8)
    nothing = LEAST_SPREAD * max((abs(value) for each in groups for _, _, value in each.known()), default=0.0)

    def whitened(_member: str, _turn: str, value: float) -> float:
        return 0.0 if abs(value - mean) <= nothing else (value - mean) / divisor

    return [each.map(whitened) for each in centered]


WHITENED = Rule(
    WhitenedSettings,
    whitened_advantages,
    "REINFORCE++ (arXiv 2501.03262) eq. 6 and 7",
    needs=lambda settings: Needs(members=2 if settings.baseline == "mean" else 1),
    formula="(x - mean x) / std x over {over} of the batch, x = G - b, b: {baseline} of the group",
)
