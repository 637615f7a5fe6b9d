"""The agents' own thread: its loop serves coroutines, and what blocks it is named."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from ludus.agents.thread import AgentThread


def test_coroutines_run_on_another_thread() -> None:
    """What is submitted runs on the agents' thread, and its result comes back."""

    async def where() -> str:
        return threading.current_thread().name

    with AgentThread() as agents:
        assert agents.submit(where()).result(5) == "ludus-agents"


def test_what_blocks_the_loop_is_named_while_it_does(caplog: pytest.LogCaptureFixture) -> None:
    """A blocking call is named with its line; when it returns, nothing is blamed any more."""
    release = threading.Event()

    async def blocking_agent() -> None:
        release.wait(10)

    with AgentThread() as agents:
        agents.submit(asyncio.sleep(0.2)).result(5)  # the watchdog has heard the loop once
        blocked = agents.submit(blocking_agent())
        while agents.blockage is None:
            assert not blocked.done()
        assert "blocking_agent" in str(agents.blockage)
        release.set()
        blocked.result(5)
        while agents.blockage is not None:
            pass
    assert "an agent blocks all agents" in caplog.text


def test_a_place_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The same line that blocks again is not worth a second warning."""
    caplog.set_level(logging.WARNING)

    async def blocking_agent(release: threading.Event) -> None:
        release.wait(10)

    with AgentThread() as agents:
        agents.submit(asyncio.sleep(0.2)).result(5)
        for _ in range(2):
            release = threading.Event()
            blocked = agents.submit(blocking_agent(release))
            while agents.blockage is None:
                assert not blocked.done()
            release.set()
            blocked.result(5)
            while agents.blockage is not None:
                pass
    assert caplog.text.count("an agent blocks all agents") == 1


def test_leaving_cancels_what_still_runs() -> None:
    """Agents that wait for ever end with the thread."""
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with AgentThread() as agents:
        agents.submit(waits())
        agents.submit(asyncio.sleep(0)).result(5)
    assert ended == ["cancelled"]


def test_an_agent_that_cannot_be_closed_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """It blocks the thread, or raises: the block ends, and the log says so."""
    release = threading.Event()

    class AgentAdapter:
        name = "stuck"

        def __init__(self, closes: Callable[[], object]) -> None:
            self._closes = closes

        async def setup(self) -> None:
            pass

        async def close(self) -> None:
            self._closes()

        async def play(self, data: object, context: object) -> object:
            return None

    def raises() -> None:
        raise ValueError("no")

    async def host(agents: AgentThread, closes: Callable[[], object]) -> None:
        async with agents.hosting(AgentAdapter(closes)):
            pass

    with AgentThread() as agents:
        asyncio.run(host(agents, raises))
        asyncio.run(host(agents, lambda: release.wait(20)))
        release.set()
    assert "the agent stuck could not be closed" in caplog.text and "ValueError: no" in caplog.text
    assert "the agent stuck was not closed" in caplog.text
