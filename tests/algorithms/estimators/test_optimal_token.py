"""A baseline for each token, on groups small enough to count by hand; verl's numbers are in tests/oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ludus.algorithms import AlgorithmSettings, GroupReturns, algorithm_of
from ludus.algorithms.base import TokenAdvantages
from ludus.algorithms.estimators.optimal_token import optimal_token_advantages
from ludus.algorithms.measured import TokenNumbers
from ludus.types import Episode, Group, Outcome, SessionRecord
from tests.algorithms.estimators.test_gae import turn

Turns = Mapping[str, tuple[str | None, float | None, Sequence[float]]]
"""By turn whom it follows, its return, and w of its tokens."""


def group_of(**members: Turns) -> GroupReturns:
    episodes = []
    for member, turns in members.items():
        record = SessionRecord(member, (), tuple(turn(name, follows) for name, (follows, _, _) in turns.items()))
        episodes.append(Episode(member, "row", "g", record, {}, Outcome("ok")))
    returns = {member: {name: value for name, (_, value, _) in turns.items()} for member, turns in members.items()}
    lengths = {name: w for turns in members.values() for name, (_, _, w) in turns.items() if w}
    measured = {name: TokenNumbers(logit_gradients=tuple(w)) for name, w in lengths.items()}
    return GroupReturns(Group("g", "row", tuple(episodes)), returns, 1.0, measured)


def credit(group: GroupReturns) -> dict[str, tuple[float, ...] | float | None]:
    (found,) = optimal_token_advantages([group])
    every = {turn_id: value for turns in found.values() for turn_id, value in turns.items()}
    return {name: each.advantages if isinstance(each, TokenAdvantages) else each for name, each in every.items()}


def test_a_place_has_the_baseline_of_its_tokens() -> None:
    """a is worth 1 with W = .5, 1.5, b 0 with W = 1.5, 2.5, 3: B = .5 / 2 = .25, 1.5 / 4 = .375, and nothing where b
    is alone."""
    group = group_of(m={"a": (None, 1.0, [0.5, 1.0])}, n={"b": (None, 0.0, [1.5, 1.0, 0.5])})
    found = credit(group)
    assert found["a"] == pytest.approx((0.75, 0.625))
    assert found["b"] == pytest.approx((-0.25, -0.375, 0.0))


def test_w_goes_on_from_turn_to_turn() -> None:
    """a, then b of one token each with returns 2 and 1: at its second place m has W = 3, as n has."""
    group = group_of(
        m={"a": (None, 2.0, [1.0]), "b": ("a", 1.0, [2.0])}, n={"c": (None, 0.0, [1.0, 2.0])}, k={"d": (None, 0.0, [])}
    )
    found = credit(group)
    assert found["a"] == pytest.approx((1.0,)) and found["b"] == pytest.approx((0.5,))
    assert found["c"] == pytest.approx((-1.0, -0.5))
    assert found["d"] == 0.0  # nothing of it was measured: it is masked


def test_turns_beside_each_other_count_once() -> None:
    """m has two workers at one place, worth 1 and 3 with W = 1 and 3, in their mean G W = 5 and W = 2; n has G W = 4, W
    = 4: B = 9 / 6."""
    group = group_of(
        m={"p": (None, 2.0, [0.0]), "a": ("p", 1.0, [1.0]), "b": ("p", 3.0, [3.0]), "x": ("p", None, [])},
        n={"q": (None, 2.0, [0.0]), "c": ("q", 1.0, [4.0])},
    )
    found = credit(group)
    assert found["a"] == pytest.approx((1 - 1.5,)) and found["b"] == pytest.approx((3 - 1.5,))
    assert found["c"] == pytest.approx((-0.5,))
    assert found["x"] is None
    assert found["p"] == found["q"] == (2.0,)  # no token there could have been another: nothing is taken off


def test_nothing_is_learned_where_returns_agree() -> None:
    """Neither from what rounding leaves of G - B, nor at the end of the longest, where B is 0."""
    group = group_of(m={"a": (None, 1.0, [0.3, 0.4])}, n={"b": (None, 1.0, [0.1, 0.5, 0.2]), "x": ("b", None, [])})
    assert credit(group) == {"a": 0.0, "b": 0.0, "x": None}


def test_the_name_says_what_is_measured() -> None:
    """Of groups of two or more."""
    needs = algorithm_of(AlgorithmSettings(name="optimal_token")).needs
    assert needs.members == 2 and needs.measured == {"logit_gradients"}
