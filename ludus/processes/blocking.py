"""Runs coroutines for blocking callers, in scripts and in notebooks, with the caller's context variables.

Knows: threads, event loops.  Knows not: what is done.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")


def run_blocking(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The coroutine's result. If an event loop is already running, as in notebooks, a separate thread is used."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    result: Future[ResultT] = Future()
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)

    async def wait() -> ResultT:
        return await task

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                result.set_result(runner.run(wait()))
        except BaseException as error:  # the boundary of the thread: it rises in the caller
            result.set_exception(error)

    thread = threading.Thread(target=work, name="ludus-main", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:  # an interrupt in the caller's thread ends the coroutine too
        loop.call_soon_threadsafe(task.cancel)
        raise
    return result.result()


def stream_blocking(function: Callable[[], AsyncGenerator[ItemT, None]]) -> Iterator[ItemT]:
    """Iterates over an asynchronous generator. Closing the iterator closes the generator, and waits for it."""
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

    thread = threading.Thread(target=drive, name="ludus-stream", daemon=True)
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
