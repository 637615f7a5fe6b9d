"""Server-sent events as a client reads them: their data, while they come or of an answer that has come.

Knows: httpx-sse.  Knows not: what the events say, who sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
from httpx_sse import EventSource

DONE = "[DONE]"
"""The data of the last event of a stream in OpenAI's protocols."""


async def coming_data(answer: httpx.Response) -> AsyncIterator[str]:
    """Raises httpx.TransportError if the answer is no stream of events."""
    async for event in EventSource(answer).aiter_sse():
        if event.data:  # a comment that comes after an event with an id is given as an event without data
            yield event.data


def whole_data(answer: bytes) -> Iterator[str]:
    """An event that was cut off is left out."""
    events = EventSource(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=answer))
    return (event.data for event in events.iter_sse() if event.data)
