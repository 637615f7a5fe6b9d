"""Awaits a user's coroutine with a deadline that holds whatever the coroutine does.

Knows: tasks.  Knows not: tools.
Invariant: the caller waits at most `timeout_s`, even if the coroutine ignores its cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

ReturnT = TypeVar("ReturnT")


class DeadlineError(Exception):
    """The call exceeded its time limit."""


async def with_deadline(call: Awaitable[ReturnT], timeout_s: float | None) -> ReturnT:
    """The result of the call, or its error; SystemExit and a cancellation raised by the call become RuntimeError.

    Raises DeadlineError after `timeout_s` (None: never) and cancels the call, as it does when the caller is cancelled.
    """
    task = asyncio.ensure_future(_guarded(call))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(forget)
    if not task.done():
        raise DeadlineError
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    return task.result()


async def _guarded(call: Awaitable[ReturnT]) -> ReturnT:
    try:
        return await call
    except SystemExit as leaving:  # would end the event loop, and every agent on it
        raise RuntimeError(f"it called sys.exit({leaving.code!r})") from None


def forget(task: asyncio.Future[Any]) -> None:
    """Ignore the result of a task that nobody awaits any more."""
    if not task.cancelled():
        task.exception()
