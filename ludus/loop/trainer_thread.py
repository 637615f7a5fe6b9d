"""One thread for the trainer's work, so that the event loop stays free for the rollouts.

Knows: threads.  Knows not: tensors.
Not an executor: numerical libraries keep a pool of workers for each thread that calls them, so it must always be the
same one, and an executor's threads would keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

ReturnT = TypeVar("ReturnT")


_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130  # as shells say: ended by signal 2


class TrainerThread:
    """Runs functions one after the other on a daemon thread. Use as a context manager.

    Leaving does not wait for a function that still runs, as it may after an interrupt or an error elsewhere.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=f"ludus-{name}", daemon=True)
        self._is_busy = False

    def __enter__(self) -> TrainerThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._jobs.put(None)
        if self._is_busy:
            is_error = kind is not None and issubclass(kind, Exception)
            atexit.register(self._leave, _EXIT_FAILED if is_error else _EXIT_INTERRUPTED)

    async def run(self, function: Callable[..., ReturnT], *args: Any, **kwargs: Any) -> ReturnT:
        """The result of the function, computed on the thread."""
        future: Future[ReturnT] = Future()
        self._jobs.put((future, lambda: function(*args, **kwargs)))
        return await asyncio.wrap_future(future)

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            self._is_busy = True
            try:
                result = function()
            except BaseException as error:  # the boundary of the thread: it is raised where the result is awaited
                self._is_busy = False
                future.set_exception(error)
            else:
                self._is_busy = False
                future.set_result(result)

    def _leave(self, code: int) -> None:
        """Exit without shutting the interpreter down, which aborts while a thread is in native code."""
        if self._is_busy:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
