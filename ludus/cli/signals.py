"""Waiting for the signal to end, for commands that serve until then."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from ludus.processes.gather import first_of


async def until_signalled(or_else: Coroutine[Any, Any, None] | None = None) -> signal.Signals | None:
    """Ctrl-C, or a supervisor's polite request to end. None: `or_else` has returned first."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.put_nowait, number)
    return await (asked.get() if or_else is None else first_of(asked.get(), or_else))


def raise_if_interrupted(ended_by: signal.Signals | None) -> None:
    """Ctrl-C leaves a command otherwise than a supervisor's request does."""
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
