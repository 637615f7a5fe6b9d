"""Ctrl-C, a supervisor's request to end, a terminal that closes: the first asks the run to save and leave, the second
leaves at once.

Knows: signals.  Knows not: what a run does to leave.
Invariants: outside the `with` block the process handles signals as it did before; what started the process deaf to the
end of its terminal (nohup) finds it so.
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
"""Longer than an interpreter with torch in it takes to leave."""


def is_heard(number: signal.Signals) -> bool:
    """Whether the process acts on it: `nohup` has the end of a terminal ignored."""
    return number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


class Interrupts:
    """Turns signals into a request that can be awaited. Only the main thread catches them; elsewhere it is inert."""

    def __init__(self) -> None:
        self._requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._terminals: list[int] = []
        self._again = threading.Timer(_AGAIN_S, _thread.interrupt_main)
        self.signal: signal.Signals | None = None
        """That asked to leave. None: none did."""

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
        elif number != signal.SIGHUP:  # a terminal that closes may say so twice, and systemd after SIGTERM
            # A library that is being loaded, or a callback from C, may swallow the exception: it comes again.
            self._again.cancel()
            self._again = threading.Timer(_AGAIN_S, _thread.interrupt_main, (number,))
            self._again.daemon = True
            self._again.start()
            raise KeyboardInterrupt

    def _forget_terminals(self) -> None:
        """What is said to a terminal that has closed is an error, which must not keep the run from saving."""
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
