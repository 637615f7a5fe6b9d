"""Ctrl-C: the first one asks the run to save and leave, the second one leaves at once.

Knows: signals.  Knows not: what a run does to leave.
Invariant: outside the `with` block the process handles SIGINT as it did before.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)


class Interrupts:
    """Turns SIGINT into a request that can be awaited. Only the main thread catches signals; elsewhere it is inert."""

    def __init__(self) -> None:
        self._requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._previous: Any = None
        self._is_installed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._is_installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, self._previous)

    @property
    def requested(self) -> bool:
        """The run was asked to leave."""
        return self._requested

    def request(self) -> None:
        """Ask the run to save and leave, as the first Ctrl-C does. May be called from any thread."""
        self._requested = True
        loop, event = self._loop, self._event
        if loop is not None and event is not None and not loop.is_closed():
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Return once the run was asked to leave. One event loop at a time may wait."""
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        if not self._requested:
            await self._event.wait()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        logger.warning("interrupted: saving a checkpoint, then leaving; interrupt again to leave at once")
        self.request()
