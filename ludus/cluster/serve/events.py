"""Server-sent events as a client reads them, while they come.

Knows: the event-stream format.  Knows not: what the events say, sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator


async def event_data(lines: AsyncIterable[str]) -> AsyncIterator[str]:
    """The data of each event, its lines put together; comments are left out, and so is an event that was cut off."""
    data: list[str] = []
    async for line in lines:
        name, _, value = line.partition(":")
        if line and name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
