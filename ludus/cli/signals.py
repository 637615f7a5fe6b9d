"""Waiting for the signal to end, for commands that serve until then."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_signalled(or_else: Coroutine[Any, Any, None] | None = None) -> signal.Signals | None:
    """Ctrl-C, or a supervisor's polite request to end. None: `or_else` has returned first."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.put_nowait, number)
    if or_else is None:
        return await asked.get()
    signalled, other = asyncio.ensure_future(asked.get()), asyncio.ensure_future(or_else)
    done, waiting = await asyncio.wait({signalled, other}, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    if other in done:
        other.result()  # raises what it raised
    return signalled.result() if signalled in done else None


def raise_if_interrupted(ended_by: signal.Signals | None) -> None:
    """Ctrl-C leaves a command otherwise than a supervisor's request does."""
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
