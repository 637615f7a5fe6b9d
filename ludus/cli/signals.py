"""Handles signals: commands that serve until a signal, exit codes, and ending by an exception."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from ludus.loop.interrupt import END_SIGNALS, is_heard
from ludus.processes.gather import first_of

_SIGNALLED = 128  # as in shells: added to the number of the signal


async def until_signalled(or_else: Coroutine[Any, Any, None] | None = None) -> signal.Signals | None:
    """Wait for SIGINT or SIGTERM; returns the signal. None: `or_else` has returned first."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in filter(is_heard, END_SIGNALS):
        loop.add_signal_handler(number, asked.put_nowait, number)
    return await (asked.get() if or_else is None else first_of(asked.get(), or_else))


def raise_if_interrupted(ended_by: signal.Signals | None) -> None:
    """Raises KeyboardInterrupt for SIGINT; returns for SIGTERM and None."""
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def raise_if_unfinished(ended_by: int | None) -> None:
    """Exit with a code other than 0 if a signal ended unfinished work, so that it does not count as done."""
    if ended_by not in (None, signal.SIGINT):
        raise typer.Exit(_SIGNALLED + ended_by)


@contextmanager
def leaving_by_exception() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP act like Ctrl-C: coroutines are cancelled, and cleanup ends processes and
    removes temporary folders."""
    told: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # ignore repeated signals, so that cleanup completes
        told.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells ignore SIGINT for background processes
            raise SystemExit(_SIGNALLED + number)
        signal.raise_signal(signal.SIGINT)

    previous = {number: signal.signal(number, leave) for number in END_SIGNALS[1:] if is_heard(number)}
    try:
        yield
    except KeyboardInterrupt:
        if told:
            raise SystemExit(_SIGNALLED + told[0]) from None
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
