"""Waiting for the signal to end, for commands that serve until then; and how, and with which code, commands leave."""

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

_SIGNALLED = 128  # as shells say: ended by the signal of this number


async def until_signalled(or_else: Coroutine[Any, Any, None] | None = None) -> signal.Signals | None:
    """Ctrl-C, or a supervisor's polite request to end. None: `or_else` has returned first."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in filter(is_heard, END_SIGNALS):
        loop.add_signal_handler(number, asked.put_nowait, number)
    return await (asked.get() if or_else is None else first_of(asked.get(), or_else))


def raise_if_interrupted(ended_by: signal.Signals | None) -> None:
    """Ctrl-C leaves a command otherwise than a supervisor's request does."""
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def raise_if_unfinished(ended_by: int | None) -> None:
    """What a supervisor ended before it was done leaves with another code than 0, which would count as done."""
    if ended_by not in (None, signal.SIGINT):
        raise typer.Exit(_SIGNALLED + ended_by)


@contextmanager
def leaving_by_exception() -> Iterator[None]:
    """A supervisor's request to end, and a terminal that closes, end what is inside as Ctrl-C does: coroutines are
    cancelled, and on the way out processes are ended and temporary folders removed."""
    told: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: what is put away is put away whole
        told.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so shells have it for what runs in the background
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
