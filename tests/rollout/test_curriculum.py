"""Rows that rest: which, for how long, what is said of them, and that a run goes on with the same ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import ConfigError, UserError
from ludus.rollout.curriculum import Curriculum, CurriculumState
from ludus.rollout.mixture import Source
from ludus.rollout.settings import CurriculumSettings
from ludus.rollout.tasks import GroupStream
from ludus.types import Episode, Outcome, SessionRecord

BOTH = CurriculumSettings(solved=1.0, hopeless=0.0)


def episodes(*values: float, metric: str = "success") -> list[Episode]:
    session = SessionRecord("s", (), ())
    return [
        Episode(f"e{idx}", "t", "g", session, {}, Outcome("ok"), reward=value, metrics={metric: value})
        for idx, value in enumerate(values)
    ]


def test_a_bound_is_reached_up_to_rounding() -> None:
    """0.7 + 0.1 + 0.2 is less than 1 in floats, and solved all the same."""
    curriculum = Curriculum(CurriculumSettings(solved=1.0, hopeless=0.3))
    curriculum.record("right", 0, episodes(0.7 + 0.1 + 0.2))
    curriculum.record("wrong", 0, episodes(0.1 + 0.2))
    curriculum.settle()
    assert {row: streak.kind for row, streak in curriculum.state.streaks.items()} == {
        "right": "solved",
        "wrong": "hopeless",
    }


def make_stream(settings: CurriculumSettings, num_rows: int = 4, **options: Any) -> GroupStream:
    sources = options.pop("sources", None) or [Source([{}] * num_rows)]
    state = options.pop("state", None)
    return GroupStream(sources, seed=1, shuffle=False, curriculum=Curriculum(settings, state), **options)


def play(stream: GroupStream, count: int, success: Callable[[int], Sequence[float]]) -> list[int]:
    """The rows of so many groups, settled one by one; success: of a row, that of the members."""
    rows = []
    for _ in range(count):
        task = next(stream)
        stream.record(task, episodes(*success(task.row_idx)))
        assert stream.curriculum is not None
        stream.curriculum.settle()
        rows.append(task.row_idx)
    return rows


def test_solved_and_hopeless_rows_sit_out_an_epoch() -> None:
    """Row 0 is always solved, row 3 never: they are played in every other epoch, the others in every one."""
    success = {0: (1, 1), 1: (1, 0), 2: (0, 1), 3: (0, 0)}
    rows = play(make_stream(BOTH), 12, lambda row: success[row])
    assert rows == [0, 1, 2, 3, 1, 2, 0, 1, 2, 3, 1, 2]


def test_several_groups_in_a_row_must_agree_and_the_rest_may_be_longer() -> None:
    """With two groups and two epochs: row 0 is played twice, sits out two epochs, and again as it is still solved."""
    settings = CurriculumSettings(solved=0.5, last_groups=2, skip_epochs=2)
    rows = play(make_stream(settings, 2), 12, lambda row: (1, 0) if row == 0 else (0, 0))
    assert rows == [0, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1]


def test_what_is_skipped_is_counted_by_its_reason() -> None:
    """Since the last time that it was settled; the state holds it for a run that goes on."""
    stream = make_stream(BOTH)
    play(stream, 4, lambda row: (1, 1) if row < 2 else (0, 0) if row == 2 else (1, 0))
    assert stream.curriculum is not None and next(stream).ordinal == 7
    assert stream.curriculum.state.skipped == {"solved": 2, "hopeless": 1}
    assert stream.curriculum.settle() == {"solved": 2, "hopeless": 1}
    assert stream.curriculum.settle() == {"solved": 0, "hopeless": 0}


def test_results_count_once_they_are_settled() -> None:
    """Not before: or what is skipped would depend on which group of a batch is complete first."""
    stream = make_stream(BOTH, 2)
    for _ in range(2):
        stream.record(next(stream), episodes(1, 1))
    assert next(stream).ordinal == 2
    assert stream.curriculum is not None
    stream.curriculum.settle()
    assert next(stream).ordinal == 4, "row 1 rests, and so does row 0 until its epoch is over"


def test_where_every_row_rests_those_played_longest_ago_are_played(caplog: pytest.LogCaptureFixture) -> None:
    """It never stops, says so once, and however long a row would rest it is found within one pass."""
    stream = make_stream(CurriculumSettings(solved=1.0, skip_epochs=10**9))
    with caplog.at_level(logging.WARNING):
        rows = play(stream, 8, lambda row: (1, 1))
    assert sorted(rows[:4]) == sorted(rows[4:]) == [0, 1, 2, 3]
    assert caplog.text.count("would skip every training row") == 1


def test_a_solved_source_gives_way() -> None:
    """Of two equal sources one is solved: while it rests its turns fall to the other."""
    sources = [Source([{}] * 2, "easy", 1.0), Source([{}] * 2, "hard", 1.0)]
    stream = make_stream(BOTH, sources=sources)
    names = []
    for _ in range(12):
        task = next(stream)
        stream.record(task, episodes(*((1, 1) if task.source.name == "easy" else (1, 0))))
        assert stream.curriculum is not None
        stream.curriculum.settle()
        names.append(task.source.name)
    assert names.count("easy") == 4 and names.count("hard") == 8


@settings(deadline=None)
@given(st.lists(st.sampled_from([(0, 0), (0, 1), (1, 1)]), min_size=40, max_size=40), st.integers(0, 39))
def test_taken_up_anywhere_the_same_rows_come(results: list[tuple[int, int]], stop: int) -> None:
    """A stream that goes on from its cursor and the state, through JSON, plays what the whole one plays."""

    def run(stream: GroupStream, numbers: range) -> list[int]:
        ordinals = []
        for number in numbers:
            task = next(stream)
            stream.record(task, episodes(*results[number]))
            assert stream.curriculum is not None
            stream.curriculum.settle()
            ordinals.append(task.ordinal)
        return ordinals

    by_success = CurriculumSettings(solved=1.0, hopeless=0.0, last_groups=2)
    whole = run(make_stream(by_success, 3), range(40))
    first = make_stream(by_success, 3)
    begun = run(first, range(stop))
    assert first.curriculum is not None
    state = CurriculumState.of_json(json.loads(json.dumps(asdict(first.curriculum.state))))
    rest = run(make_stream(by_success, 3, state=state, next_ordinal=first.next_ordinal), range(stop, 40))
    assert begun + rest == whole


def test_a_group_that_is_played_again_counts_once() -> None:
    """One that was begun, settled and not trained on comes again with a resumed run."""
    stream = make_stream(CurriculumSettings(solved=1.0, last_groups=2), 1)
    task = next(stream)
    for _ in range(2):
        stream.record(task, episodes(1, 1))
    assert stream.curriculum is not None
    stream.curriculum.settle()
    assert stream.curriculum.state.streaks["row0"].length == 1


def test_success_that_nobody_reports_is_an_error_that_says_what_there_is() -> None:
    """Rewards can be gone by instead, and who says nothing beside others had no success."""
    stream = make_stream(BOTH)
    with pytest.raises(UserError, match=r"metric='success' is reported by no episode of row0, which report score; .*"):
        stream.record(next(stream), episodes(1, 1, metric="score"))
    stream.record(next(stream), [])
    by_reward = make_stream(CurriculumSettings(solved=1.0, metric="reward"), 2)
    assert play(by_reward, 3, lambda row: (1, 1) if row == 0 else (1, 0)) == [0, 1, 1]


def test_bounds_that_cross_are_an_error_and_what_cannot_act_is_named() -> None:
    """A row cannot be both."""
    with pytest.raises(ConfigError, match=r"hopeless=0.5 must be less than solved=0.5"):
        CurriculumSettings(solved=0.5, hopeless=0.5)
    assert [each.key for each in CurriculumSettings(skip_epochs=3).idle()] == ["skip_epochs"]
    assert not list(BOTH.idle())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_epochs_of_a_row_in_one_batch_count_in_their_order_whoever_is_done_first(order: tuple[int, ...]) -> None:
    """Solved in epoch 0, not in epoch 1: the row does not rest."""
    curriculum = Curriculum(BOTH)
    for epoch in order:
        curriculum.record("row0", epoch, episodes(*((1, 1), (1, 0))[epoch]))
    curriculum.settle()
    assert not curriculum.state.streaks
