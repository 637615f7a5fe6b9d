"""Event streams, read as strictly as the format is."""

from __future__ import annotations

import pytest

from ludus.checks.conformance.sse import Event, read_events, write_events


def test_events_are_read_and_written() -> None:
    """Names, lines of data put together, comments left out; what is written reads as it was."""
    text = ": keep-alive\n\nevent: a\ndata: {}\n\ndata:x\ndata: y\r\n\r\n"
    assert read_events(text) == [Event("{}", "a"), Event("x\ny")]
    events = [Event('{"a": 1}', "a"), Event("[DONE]")]
    assert read_events(write_events(events).decode()) == events
    assert events[0].json == {"a": 1}


@pytest.mark.parametrize("text", ["data: x\n", "data: x", '{"error": "x"}\n\n'])
def test_broken_streams_are_refused(text: str) -> None:
    """An event without its blank line, or a line that is no field, is an error."""
    with pytest.raises(ValueError, match="the stream"):
        read_events(text)
