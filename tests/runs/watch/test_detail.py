"""An episode as the page is told of it: what its time went to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ludus.runs.watch.detail import episode_detail
from ludus.types import Episode, Span
from tests.runs.conftest import rich_episode


def told(*, started_at: float, first_token_at: float, prefill_s: float | None) -> tuple[list[Any], Any]:
    """The spans and the first turn of an episode that began at 1; its first turn ended at 4."""
    episode = rich_episode()
    first, *others = episode.session.turns
    times = {"started_at": started_at, "first_token_at": first_token_at, "finished_at": 4.0}
    turn = replace(first, sampled=replace(first.sampled, prefill_s=prefill_s), **times)
    session = replace(episode.session, turns=(turn, *others))
    tool = Span("tool", "search", 4.0, 4.5, turn_id="t0")
    played: Episode = replace(episode, session=session, started_at=1.0, spans=(tool,))
    found = episode_detail(played, uses={}, decode=None, turn_discount=1.0)
    spans = [(span["kind"], pytest.approx(span["start_s"]), pytest.approx(span["end_s"])) for span in found["spans"]]
    return spans, found["turns"][0]


def test_waiting_prefill_decode_and_tool_are_told_apart() -> None:
    """They follow one another without a gap, from the request to the end of the tool."""
    spans, turn = told(started_at=1.5, first_token_at=3.0, prefill_s=0.5)
    assert spans == [("queue", 0.5, 1.5), ("prefill", 1.5, 2.0), ("decode", 2.0, 3.0), ("tool", 3.0, 3.5)]
    assert (turn["until_first_s"], turn["wait_s"], turn["prefill_s"], turn["decode_s"]) == (1.5, 1.0, 0.5, 1.0)


def test_where_the_engine_does_not_say_waiting_and_prefill_are_one() -> None:
    spans, turn = told(started_at=1.5, first_token_at=3.0, prefill_s=None)
    assert spans == [("first_token", 0.5, 2.0), ("decode", 2.0, 3.0), ("tool", 3.0, 3.5)]
    assert (turn["until_first_s"], turn["wait_s"], turn["prefill_s"]) == (1.5, None, None)


def test_an_answer_that_was_recalled_has_not_waited_less_than_nothing() -> None:
    """Its prompt was computed in another life, and took longer than all of this one."""
    spans, turn = told(started_at=1.5, first_token_at=1.75, prefill_s=9.0)
    assert spans[:2] == [("queue", 0.5, 0.5), ("prefill", 0.5, 0.75)] and turn["wait_s"] == 0.0
    spans, turn = told(started_at=1.5, first_token_at=0.0, prefill_s=0.5)
    assert spans[0] == ("model", 0.5, 3.0) and turn["wait_s"] is turn["prefill_s"] is None
