"""The stream of groups: the same for the same seed, wherever it is taken up again."""

from __future__ import annotations

from itertools import islice

import pytest

from ludus.errors import UserError
from ludus.rollout.mixture import Source, derive_seed
from ludus.rollout.tasks import GroupStream

ROWS = [{"n": number} for number in range(5)]


def rows_of(stream: GroupStream, count: int) -> list[int]:
    return [task.row_idx for task in islice(stream, count)]


def test_every_epoch_plays_every_row_once_in_its_own_order() -> None:
    """Two epochs are two different permutations of the rows."""
    order = rows_of(GroupStream([Source(ROWS)], seed=1, shuffle=True), 10)
    assert sorted(order[:5]) == sorted(order[5:]) == [0, 1, 2, 3, 4]
    assert order[:5] != order[5:]
    assert rows_of(GroupStream([Source(ROWS)], seed=1, shuffle=False), 7) == [0, 1, 2, 3, 4, 0, 1]


def test_a_stream_taken_up_again_goes_on_as_if_it_had_not_stopped() -> None:
    """Groups that were begun come first, then those never dispatched, with the same rows and seeds."""
    whole = list(islice(GroupStream([Source(ROWS)], seed=7, shuffle=True), 9))
    resumed = GroupStream([Source(ROWS)], seed=7, shuffle=True, next_ordinal=6, first=(4, 2))
    again = list(islice(resumed, 5))
    assert again == [whole[2], whole[4], *whole[6:9]]
    assert resumed.next_ordinal == 9


def test_seeds_depend_on_everything_that_tells_episodes_apart() -> None:
    """Members, attempts and groups all have seeds and ids of their own, the same in every run."""
    first, second = islice(GroupStream([Source(ROWS)], seed=7, shuffle=True), 2)
    tasks = [group.member(member, attempt, 1) for group in (first, second) for member in (0, 1) for attempt in (0, 1)]
    assert len({task.seed for task in tasks}) == len({task.episode_id for task in tasks}) == 8
    assert first.member(0, 0, 1) == next(GroupStream([Source(ROWS)], seed=7, shuffle=True)).member(0, 0, 1)
    assert all(0 <= task.seed < 2**63 for task in tasks)
    assert derive_seed(1, "a") != derive_seed(1, "b")


def test_no_rows_is_an_error() -> None:
    """There is nothing to stream from an empty dataset."""
    with pytest.raises(UserError, match="no rows"):
        GroupStream([Source([])], seed=1, shuffle=True)
