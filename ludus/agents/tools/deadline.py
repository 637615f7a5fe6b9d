"""One call of a user's coroutine, with a deadline that holds whatever the coroutine does.

Knows: tasks.  Knows not: tools.
Invariant: who waits here waits `timeout_s` at most, even for a coroutine that does not let itself be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

ReturnT = TypeVar("ReturnT")


class DeadlineError(Exception):
    """The call took longer than it may."""


async def with_deadline(call: Awaitable[ReturnT], timeout_s: float | None) -> ReturnT:
    """What the call returns, or raises: an exit of the interpreter and a cancellation of its own as RuntimeError.

    Raises DeadlineError after `timeout_s` (None: never); the call is cancelled then, as it is when the caller is.
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
    """What a task ends with that nobody waits for any more concerns nobody."""
    if not task.cancelled():
        task.exception()
