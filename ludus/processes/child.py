"""The program of a worker process: reads calls from one socket, runs them on its main thread, and answers.

Knows: only the standard library, because it is started by its path and must start fast.  Knows not: Ludus, pools.
Invariants: one call at a time, on the main thread; the environment is restored after each call; when the process that
started it ends, it and its children end too, whatever they are doing.

    ──▶ (sys.path)                          frames: 8 bytes of length, then a pickle
    ──▶ (function id, payload | None, is_factory, is_kept, arguments, env)
    ◀── ("started",)
    ◀── ("returned", pickle) | ("raised", pickle | None, words, trace, codes) | ("unloaded", words, trace)
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import pickle
import queue
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MAX_FRAMES = 6
_MAX_CAUSES = 8
_OUR_FOLDER = str(Path(__file__).parents[1]) + os.sep
_LIBRARY_FOLDERS = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, __file__)


def main(fd: int) -> None:
    """Serves until the other end of the socket `fd` is closed."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    for stream in (sys.stdout, sys.stderr):  # what is printed has left the process when a call kills it
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    (sys.path[:],) = pickle.loads(_read_frame(control))
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(control, requests), daemon=True).start()
    worker = _Worker(control)
    while True:
        worker.serve(*pickle.loads(requests.get()))


class _Worker:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._kept: dict[str, Callable[..., Any]] = {}
        self._runner = asyncio.Runner()
        """One event loop for the life of the process, so that what an agent opened in its constructor stays usable."""

    def serve(
        self, function_id: str, payload: bytes | None, is_factory: bool, is_kept: bool, arguments: bytes, env: Any
    ) -> None:
        before = dict(os.environ)
        os.environ.update(env)
        try:
            try:
                function = self._load(function_id, payload, is_factory, is_kept)
                args, kwargs = pickle.loads(arguments)
            except BaseException as error:  # the boundary of user code
                self._send(("unloaded", _words(error), trace_of(error)))
                return
            self._send(("started",))
            self._send(self._run(function, args, kwargs))
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _load(self, function_id: str, payload: bytes | None, is_factory: bool, is_kept: bool) -> Callable[..., Any]:
        if payload is None:
            return self._kept[function_id]
        function = pickle.loads(payload)
        if is_factory:
            function = function()
        if is_kept:
            self._kept[function_id] = function
        return function  # type: ignore[no-any-return]

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
        try:
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self._runner.run(_to_its_end(value), context=contextvars.copy_context())
            return ("returned", _dumps(value))
        except BaseException as error:  # the boundary of user code; `sys.exit` too ends a call, not the process
            return ("raised", _travelling(error), _words(error), trace_of(error), codes_of(error))
        finally:
            for stream in (sys.stdout, sys.stderr):
                if not stream.closed:
                    stream.flush()

    def _send(self, message: tuple[Any, ...]) -> None:
        frame = pickle.dumps(message)
        self._control.sendall(len(frame).to_bytes(8, "big") + frame)


async def _to_its_end(awaitable: Any) -> Any:
    """Await it; tasks that it left behind are cancelled afterwards."""
    try:
        return await awaitable
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _read_requests(control: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Pass on requests; at the end of the stream, end the process and everything that it started."""
    try:
        while True:
            requests.put(_read_frame(control))
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _read_frame(control: socket.socket) -> bytes:
    return _read(control, int.from_bytes(_read(control, 8), "big"))


def _read(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = control.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _dumps(value: object) -> bytes:
    import cloudpickle  # what a call was sent with is installed

    try:
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]
    except Exception as error:  # whatever a user's __reduce__ raises
        kind = type(value).__name__
        raise TypeError(f"the value returned, of type {kind}, cannot leave its process: {error}") from error


def _travelling(error: BaseException) -> bytes | None:
    """The error's pickle. None: it cannot be pickled, or does not unpickle to the same kind of error."""
    try:
        payload = _dumps(error)
        return payload if isinstance(pickle.loads(payload), type(error)) else None
    except Exception:  # errors of SDKs hold clients and responses, and constructors with arguments of their own
        return None


def _words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def trace_of(error: BaseException, *, num_ours: int = 0) -> str:
    """The traceback with the last frames of the user's code. num_ours: our own frames at its start."""
    trace = traceback.TracebackException.from_exception(error)
    frames = trace.stack[num_ours:]
    trace.stack[:] = _own(frames)[-_MAX_FRAMES:] or frames[-_MAX_FRAMES:]
    return "".join(trace.format(chain=False)).rstrip()


def place_of(error: BaseException, *, num_ours: int = 0) -> str:
    """The same without the error: where the user's code was. Empty: in none of it."""
    own = _own(traceback.TracebackException.from_exception(error).stack[num_ours:])
    theirs = [frame for frame in own if not frame.filename.startswith(_OUR_FOLDER)]
    return "".join(traceback.StackSummary.from_list(theirs[-_MAX_FRAMES:]).format()).rstrip()


def _own(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if not frame.filename.startswith(_LIBRARY_FOLDERS)]


def codes_of(error: BaseException) -> str:
    """Codes and messages of the error and of its causes, one per line."""
    lines: list[str] = []
    at: BaseException | None = error
    while at is not None and len(lines) < _MAX_CAUSES:
        lines.append(f"{getattr(at, 'code', '')} {at}")  # SDKs keep the typed code of an HTTP error in `code`
        at = at.__cause__ or at.__context__
    return "\n".join(lines)


if __name__ == "__main__":
    main(int(sys.argv[1]))
