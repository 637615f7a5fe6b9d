"""Runs a coroutine to its end for a caller that is not asynchronous, in scripts and in notebooks alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_blocking(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The coroutine's result. Where an event loop runs already, as in notebooks, it gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    result: Future[ResultT] = Future()
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                result.set_result(runner.run(_wait(task)))
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


async def _wait(task: asyncio.Task[ResultT]) -> ResultT:
    return await task
