"""Streams of events as the standard has them, whole and in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from ludus.http.sse import coming_data, whole_data

HEAD = {"content-type": "text/event-stream; charset=utf-8"}
STREAM = (
    'id: 1\ndata: {"text": "a\u2028b\u2029c\x85d"}\n\n: still here\n\ndata:no space\r\n\r\n'
    "event: named\ndata: two\ndata: lines\n\ndata: [DONE]\n\ndata: cut o"
).encode()
TOLD = ['{"text": "a\u2028b\u2029c\x85d"}', "no space", "two\nlines", "[DONE]"]


async def written(answer: httpx.Response) -> list[str]:
    return [data async for data in coming_data(answer)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_read_while_they_come(size: int) -> None:
    """However they are cut: separators of lines that are not the stream's, comments after an id, several lines."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(STREAM), size):
            yield STREAM[start : start + size]

    assert asyncio.run(written(httpx.Response(200, headers=HEAD, content=pieces()))) == TOLD


def test_events_of_a_whole_answer_are_the_same() -> None:
    """An event that was cut off is in neither."""
    assert list(whole_data(STREAM)) == TOLD


def test_another_answer_is_no_stream() -> None:
    """A page of a proxy is an error of the transport, which clients try again or name."""
    with pytest.raises(httpx.TransportError, match="text/html"):
        asyncio.run(written(httpx.Response(200, headers={"content-type": "text/html"}, content=b"<html>")))
