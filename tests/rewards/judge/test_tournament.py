"""Heats and their final."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ludus.rewards.judge.tournament import on_one_scale, split_into_heats, winner


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(100, 200))
def test_everybody_is_in_one_heat_that_fits(sizes: list[int], room: int) -> None:
    """In their order; every heat but the last has two at least, so that a tournament ends."""
    heats = split_into_heats(sizes, room)
    assert [index for heat in heats for index in heat] == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in heat) <= room for heat in heats)
    assert all(len(heat) >= 2 for heat in heats[:-1])


def test_two_that_do_not_fit_are_compared_anyway() -> None:
    """A heat of one would decide nothing."""
    assert split_into_heats([90, 90, 90], 100) == [[0, 1], [2]]


def test_the_first_of_the_best_wins() -> None:
    """Ties are broken by the order in which they were given."""
    assert winner({4: 0.5, 2: 0.9, 7: 0.9}) == 2


def test_distances_in_a_heat_are_kept() -> None:
    """A winner has its score of the final, and the others are as far below it as they were."""
    scores = on_one_scale([{0: 0.9, 1: 0.6}, {2: 0.5, 3: 0.1}], {0: 0.4, 2: 1.0})
    assert scores == pytest.approx({0: 0.4, 1: 0.1, 2: 1.0, 3: 0.6})


def test_the_scale_ends_at_zero() -> None:
    """Whoever would be below it stands there."""
    assert on_one_scale([{0: 1.0, 1: 0.0}, {2: 1.0}], {0: 0.2, 2: 0.8})[1] == 0.0
