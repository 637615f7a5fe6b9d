"""Wakes waiters when something has changed, on any event loop; may be notified from any thread.

Knows: event loops.  Knows not: what changes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


class Notifier:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """A listener that gets every change from now on. Enter it before looking at the state that may change."""
        listener = Listener(asyncio.get_running_loop())
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def notify(self) -> None:
        with self._lock:
            for listener in self._listeners:
                with suppress(RuntimeError):  # its loop is closed, and nobody waits there
                    listener.loop.call_soon_threadsafe(listener.changed.set)


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A waiter for changes."""

    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a change since the last call, at most `timeout_s`. Returns whether there was one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        has_changed = self.changed.is_set()
        self.changed.clear()
        return has_changed
