"""Asynchronous work for callers that block, whether or not an event loop runs on their thread.

Knows: threads, event loops, context variables.  Knows not: what is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

ReturnT = TypeVar("ReturnT")
ItemT = TypeVar("ItemT")


def run_blocking(function: Callable[[], Coroutine[Any, Any, ReturnT]]) -> ReturnT:
    """What the coroutine returns; it sees the caller's context variables."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(function())
    outcome: queue.SimpleQueue[tuple[ReturnT | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((asyncio.run(function()), None))
        except BaseException as error:  # it goes on where it was asked for
            outcome.put((None, error))

    _thread(work).start()
    result, error = outcome.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error there is a result


def stream_blocking(function: Callable[[], AsyncGenerator[ItemT, None]]) -> Iterator[ItemT]:
    """What the asynchronous generator yields, as it comes. Closing this one closes that one, and waits for it."""
    items: queue.SimpleQueue[tuple[ItemT | None, BaseException | None]] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with aclosing(function()) as stream:
            async for item in stream:
                items.put((item, None))

    task = loop.create_task(work())

    def drive() -> None:
        end: BaseException | None = None
        try:
            loop.run_until_complete(task)
        except BaseException as error:  # it goes on where it was asked for
            end = error
        finally:
            loop.close()
            items.put((None, end or StopIteration()))

    thread = _thread(drive)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]  # without an error there is an item
    finally:
        with suppress(RuntimeError):  # the loop is closed: the work is done
            loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _thread(work: Callable[[], None]) -> threading.Thread:
    context = contextvars.copy_context()
    return threading.Thread(target=lambda: context.run(work), name="ludus-blocking-model", daemon=True)
