"""Signals that ask a run to end (Ctrl-C, SIGTERM, a closed terminal): the first makes it save and leave, the second
makes it leave at once.

Knows: signals.  Knows not: what a run does to leave.
Invariants: outside the `with` block the process handles signals as it did before; a process started with nohup goes on
ignoring SIGHUP.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; Kubernetes, systemd, Docker and Slurm; a terminal or a connection that closes."""


_AGAIN_S = 5.0
"""Before the second interrupt is raised once more: longer than an interpreter with torch loaded takes to exit."""


def is_heard(number: signal.Signals) -> bool:
    """Whether the process acts on the signal. False for SIGHUP under `nohup`."""
    return number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


class Interrupts:
    """Turns signals into a request that can be awaited. Does nothing on other threads than the main one."""

    def __init__(self) -> None:
        self._requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._terminals: list[int] = []
        self._again = threading.Timer(_AGAIN_S, _thread.interrupt_main)
        self.signal: signal.Signals | None = None
        """The signal that asked the run to leave. None: no signal did."""

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._terminals = [descriptor for descriptor in (0, 1, 2) if _is_terminal(descriptor)]
            heard = [number for number in END_SIGNALS if is_heard(number)]
            self._previous = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        self._again.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

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

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._forget_terminals()
        if self.signal is None:
            self.signal = signal.Signals(number)
            name = "interrupted" if number == signal.SIGINT else self.signal.name
            logger.warning("%s: saving a checkpoint, then leaving; interrupt again to leave at once", name)
            self.request()
        elif number != signal.SIGHUP:  # a closing terminal may send it twice, and systemd sends it after SIGTERM
            # An import in progress, or a callback from C, may swallow the exception, so it is raised again later.
            self._again.cancel()
            self._again = threading.Timer(_AGAIN_S, _thread.interrupt_main, (number,))
            self._again.daemon = True
            self._again.start()
            raise KeyboardInterrupt

    def _forget_terminals(self) -> None:
        """Send output to /dev/null: writing to a closed terminal fails, which must not keep the run from saving."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        self._terminals = []


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # it is closed
        return False
