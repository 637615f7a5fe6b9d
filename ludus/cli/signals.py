"""Waiting for the word to end, for commands that serve until somebody says so."""

from __future__ import annotations

import asyncio
import signal


async def until_signalled() -> signal.Signals:
    """Ctrl-C, or a supervisor's polite request to end."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.put_nowait, number)
    return await asked.get()
