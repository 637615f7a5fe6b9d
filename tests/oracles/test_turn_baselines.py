"""A baseline of turns must not know how many turns its own episode has; worked out exactly, without a peer.

An episode has one turn, worth 1, or goes on with probability q to a second turn worth c. Its mean reward is 1 + q c,
so d/dtheta of it, with q = sigmoid(theta), is q (1 - q) c; d log pi is 1 - q for going on and -q for ending.
"""

from collections.abc import Callable, Mapping
from itertools import product

import pytest

from ludus.algorithms import GroupReturns, turn_returns
from ludus.algorithms.estimators.group import group_advantages
from ludus.types import Group

Advantages = Callable[[Mapping[str, bool], float], dict[str, float]]
"""From which members went on, and c, to the advantage of each member's first turn."""


def expected_gradient(advantages: Advantages, q: float, c: float) -> float:
    """For one member on average, over all that a group of three can do."""
    total = 0.0
    for choices in product((False, True), repeat=3):
        goes_on = dict(zip("abc", choices, strict=True))
        chance = q ** sum(choices) * (1 - q) ** (3 - sum(choices))
        first = advantages(goes_on, c)
        total += chance * sum(first[member] * (1 - q if on else -q) for member, on in goes_on.items())
    return total / 3


def ours(goes_on: Mapping[str, bool], c: float) -> dict[str, float]:
    returns = {
        member: turn_returns({"1": None, "2": "1"}, {"1": 1.0, "2": c}, turn_discount=1.0)
        if on
        else turn_returns({"1": None}, {"1": 1.0}, turn_discount=1.0)
        for member, on in goes_on.items()
    }
    group = GroupReturns(Group("g0", "row0", ()), returns)
    (advantages,) = group_advantages([group], baseline="leave_one_out", scale="none")
    return {member: turns["1"] or 0.0 for member, turns in advantages.items()}


def by_turn_index(goes_on: Mapping[str, bool], c: float) -> dict[str, float]:
    """Each turn against the same turn of the members that have one, and what follows is added up."""
    second = [c for on in goes_on.values() if on]
    return {member: (1 - 1) + (c - sum(second) / len(second) if on else 0.0) for member, on in goes_on.items()}


@pytest.mark.parametrize("c", [-0.5, 0.0, 2.0])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.8])
def test_one_baseline_a_group_is_right_on_average(q: float, c: float) -> None:
    """The expected gradient is that of the mean reward, whatever going on is worth."""
    assert expected_gradient(ours, q, c) == pytest.approx(q * (1 - q) * c)


def test_a_baseline_by_turn_index_is_not() -> None:
    """Subtracting a mean for each turn that was taken takes away what the decision to take it was worth.

    Source: verl's issue 7244, of the normalisation of MT-GRPO (arXiv 2505.11821).
    """
    assert expected_gradient(by_turn_index, 0.5, 2.0) == pytest.approx(0.0)
    assert expected_gradient(ours, 0.5, 2.0) == pytest.approx(0.5)
