"""Spans are kept for the episode in which they happen, whatever thread or task they are in."""

import asyncio

import pytest

from ludus.runs.spans import SpanLog, collect_spans, span


def test_a_span_is_kept_with_what_it_gave():
    """Inputs, outputs, the turn and the time."""
    log = SpanLog()
    with collect_spans(log), span("tool", "add", inputs={"a": 1}) as begun:
        begun.outputs, begun.turn_id = 2, "t1"
    (kept,) = log.snapshot()
    assert (kept.kind, kept.name, kept.inputs, kept.outputs, kept.turn_id) == ("tool", "add", {"a": 1}, 2, "t1")
    assert kept.error is None and kept.finished_at >= kept.started_at > 0


def test_what_a_span_raises_is_its_error_and_goes_on():
    """A tool that fails is in the log too."""
    log = SpanLog()
    with pytest.raises(ValueError, match="no"), collect_spans(log), span("tool", "bad"):
        raise ValueError("no")
    assert log.snapshot()[0].error == "ValueError: no"


def test_outside_of_an_episode_nothing_is_kept():
    """A tool that is called by itself works all the same."""
    with span("tool", "alone") as begun:
        begun.outputs = 1


def test_threads_and_tasks_of_an_episode_report_to_it_alone():
    """Two episodes at once do not mix."""

    async def episode(name):
        log = SpanLog()

        def work():
            with span("tool", name):
                pass

        with collect_spans(log):
            await asyncio.gather(asyncio.to_thread(work), asyncio.create_task(asyncio.to_thread(work)))
        return [kept.name for kept in log.snapshot()]

    async def both():
        return await asyncio.gather(episode("a"), episode("b"))

    assert asyncio.run(both()) == [["a", "a"], ["b", "b"]]
