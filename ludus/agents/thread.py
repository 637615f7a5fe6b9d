"""The thread on which agents run, with an event loop separate from the gateway's and the engine's.

Knows: threads, event loops, the watchdog.  Knows not: what an agent does.
Invariant: a blocking call in an agent can delay other agents, but never the gateway or the engine that serve it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ludus.agents.adapter import AgentAdapter
from ludus.gateway.watchdog import Blockage, LoopWatchdog

logger = logging.getLogger(__name__)
ReturnT = TypeVar("ReturnT")

_STOP_TIMEOUT_S = 2.0
"""How long a blocked agent may delay the end of a run; its thread is a daemon and dies with the process."""


_CLOSE_TIMEOUT_S = 30.0
"""How long an agent may take to close what it opened, such as the servers of its tools."""


class AgentThread:
    """An event loop on a daemon thread. Use as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="ludus-agents", daemon=True)
        self._watchdog = LoopWatchdog(self._loop, on_blocked=self._on_blocked)
        self.blockage: Blockage | None = None
        """What blocks the loop at the moment. None: nothing."""
        self._warned_of: set[str] = set()
        """Places already warned of: one warning for each is enough."""

    def __repr__(self) -> str:
        return f"AgentThread(alive={self._thread.is_alive()}, blocked_by={self.blockage})"

    def __enter__(self) -> AgentThread:
        self._thread.start()
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("an agent still blocks its thread (%s); it ends with the process", self.blockage)

    def submit(self, coroutine: Coroutine[Any, Any, ReturnT]) -> Future[ReturnT]:
        """Run the coroutine on this thread; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @asynccontextmanager
    async def hosting(self, agent_adapter: AgentAdapter) -> AsyncIterator[None]:
        """Set the agent up on this thread, and close it after the block. Called from another event loop."""
        await asyncio.wrap_future(self.submit(agent_adapter.setup()))
        try:
            yield
        finally:
            await self._close(agent_adapter)

    async def _close(self, agent_adapter: AgentAdapter) -> None:
        """Close the agent, with a time limit and without raising: the run's results must not be lost at its end."""
        closing = asyncio.wrap_future(self.submit(agent_adapter.close()))
        deadline_at = time.monotonic() + _CLOSE_TIMEOUT_S
        while not closing.done():
            beat = self.submit(asyncio.sleep(0))
            await asyncio.wait({closing}, timeout=_STOP_TIMEOUT_S)
            if not closing.done() and (not beat.done() or time.monotonic() >= deadline_at):
                closing.cancel()
                logger.warning(
                    "the agent %s was not closed: %s", agent_adapter.name, self.blockage or "it takes too long"
                )
                return
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            logger.error("the agent %s could not be closed", agent_adapter.name, exc_info=error)

    def _on_blocked(self, blockage: Blockage) -> None:
        level = logging.DEBUG if blockage.caller in self._warned_of else logging.WARNING
        self._warned_of.add(blockage.caller)
        logger.log(level, "an agent blocks all agents: %s; await the call, or run it in a thread", blockage)
        self.blockage = blockage
        self._loop.call_soon_threadsafe(self._clear)  # runs as soon as the loop goes on

    def _clear(self) -> None:
        self.blockage = None

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._drain())
            self._loop.close()

    async def _drain(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
