"""Reads the data of server-sent events, from an answer that is still coming or from a complete one.

Knows: httpx-sse.  Knows not: what the events say, who sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
from httpx_sse import EventSource

DONE = "[DONE]"
"""The data of the last event of a stream in OpenAI's protocols."""


async def coming_data(answer: httpx.Response) -> AsyncIterator[str]:
    """The data of each event as it comes. Raises httpx.TransportError if the answer is not an event stream."""
    async for event in EventSource(answer).aiter_sse():
        if event.data:  # a comment that comes after an event with an id is given as an event without data
            yield event.data


def whole_data(answer: bytes) -> Iterator[str]:
    """The data of each event in a complete answer; an event that was cut off is left out."""
    events = EventSource(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=answer))
    return (event.data for event in events.iter_sse() if event.data)
