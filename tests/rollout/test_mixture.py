"""Several sources of rows: their shares, their order, and that both are the same wherever a stream is taken up."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import UserError
from ludus.rollout.mixture import Mixture, Source, row_named
from ludus.rollout.tasks import GroupStream

WEIGHTS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6)


def sources_of(weights: list[float], num_rows: int = 5) -> list[Source]:
    rows = [{"n": number} for number in range(num_rows)]
    return [Source(rows, f"s{idx}", weight) for idx, weight in enumerate(weights)]


def keys(stream: GroupStream, count: int) -> list[tuple[int, str, int, int]]:
    return [(task.ordinal, task.source.name, task.epoch, task.row_idx) for task in islice(stream, count)]


@given(WEIGHTS, st.integers(0, 2**32), st.integers(1, 400))
def test_no_source_is_further_from_its_share_than_one_group_a_source(
    weights: list[float], seed: int, count: int
) -> None:
    """After any number of groups, whatever the weights."""
    mixture = Mixture(sources_of(weights), seed)
    counts = Counter(mixture.at(ordinal)[0] for ordinal in range(count))
    for idx, weight in enumerate(weights):
        assert abs(counts[idx] - count * weight / sum(weights)) < 1 + len(weights)


def test_a_source_without_rows_is_named() -> None:
    """As the configuration calls it."""
    with pytest.raises(UserError, match=r"the training dataset 'code' \(train_dataset\.mix\.code\) has no rows"):
        Mixture([Source([{}], "sums"), Source([], "code")], seed=1)


def test_shares_of_whole_passes_are_exact() -> None:
    """Weights 3, 2 and 1: of every six groups three, two and one, counted by hand."""
    mixture = Mixture(sources_of([3.0, 2.0, 1.0]), seed=5)
    for first in range(0, 60, 6):
        assert Counter(mixture.at(ordinal)[0] for ordinal in range(first, first + 6)) == {0: 3, 1: 2, 2: 1}


@given(WEIGHTS, st.integers(0, 2**32), st.integers(0, 60), st.booleans())
def test_a_mixture_is_a_function_of_seed_and_number(
    weights: list[float], seed: int, cursor: int, shuffle: bool
) -> None:
    """Taken up at any cursor it goes on as if it had not stopped; groups asked for out of order are the same."""
    sources = sources_of(weights)
    whole = keys(GroupStream(sources, seed=seed, shuffle=shuffle), 70)
    assert keys(GroupStream(sources, seed=seed, shuffle=shuffle, next_ordinal=cursor), 70 - cursor) == whole[cursor:]
    again = GroupStream(sources, seed=seed, shuffle=shuffle, next_ordinal=cursor, first=range(0, cursor, 3))
    assert keys(again, len(range(0, cursor, 3))) == whole[:cursor:3]


def test_each_source_plays_every_row_once_an_epoch_in_an_order_of_its_own() -> None:
    """Sources of three and seven rows, weighed 1 to 2: epochs pass at their own pace."""
    sources = [Source([{}] * 3, "few", 1.0), Source([{}] * 7, "many", 2.0)]
    played: dict[str, list[int]] = {"few": [], "many": []}
    for task in islice(GroupStream(sources, seed=1, shuffle=True), 63):
        played[task.source.name].append(task.row_idx)
    assert len(played["few"]) == 21 and len(played["many"]) == 42
    for name, num_rows in (("few", 3), ("many", 7)):
        epochs = [played[name][start : start + num_rows] for start in range(0, len(played[name]), num_rows)]
        assert all(sorted(epoch) == list(range(num_rows)) for epoch in epochs)
        assert len(set(map(tuple, epochs))) > 1


def test_another_seed_is_another_order() -> None:
    """Which source begins is drawn, and so is the order of its rows."""
    sources = sources_of([1.0, 1.0])
    assert len({tuple(keys(GroupStream(sources, seed=seed, shuffle=True), 8)) for seed in range(8)}) == 8


def test_groups_of_sources_are_told_apart_by_name() -> None:
    """Rows of two sources with one number are two tasks; the agents are told their source."""
    first, second = islice(GroupStream(sources_of([1.0, 1.0], num_rows=1), seed=1, shuffle=True), 2)
    assert {first.task_id, second.task_id} == {"s0-row0", "s1-row0"}
    assert first.member(0, 0, 1).source == first.source.name
    assert first.member(0, 0, 1).seed != second.member(0, 0, 1).seed


@pytest.mark.parametrize("seed", [0, 7])
def test_one_source_is_the_plain_stream(seed: int) -> None:
    """Group n is the n-th row of the epochs' orders."""
    tasks = list(islice(GroupStream([Source([{}] * 4)], seed=seed, shuffle=False), 9))
    assert [(task.row_idx, task.epoch) for task in tasks] == [(number % 4, number // 4) for number in range(9)]
    assert tasks[5].task_id == "row1"


def test_a_row_is_found_by_its_name() -> None:
    """Among several sources, one of which has a name like another's rows, and in the only one, which has none."""
    sources = [Source([{"n": 0}, {"n": 1}], "row"), Source([{"n": 2}, {"n": 3}], "a-row1")]
    for source in sources:
        for row_idx, row in enumerate(source.rows):
            assert row_named(sources, source.row_name(row_idx)) is row
    only = Source([{"n": 4}])
    assert row_named([only], only.row_name(0)) is only.rows[0]
