"""Works of which the first to end decides."""

import asyncio

import pytest

from ludus.processes.gather import first_of


def test_the_first_to_end_decides_and_the_others_have_been_cancelled():
    """Its result is returned, what it raises rises, and nothing goes on; of two at once the first named counts."""
    ended = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def answer(value):
        return value

    async def fail():
        raise KeyError("why")

    assert asyncio.run(first_of(wait(), answer(7), answer(8))) == 7
    assert ended == ["cancelled"]
    with pytest.raises(KeyError, match="why"):
        asyncio.run(first_of(wait(), fail()))
    assert ended == ["cancelled"] * 2
