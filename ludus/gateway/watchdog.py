"""Names whatever blocks an event loop, while it blocks it.

Knows: one event loop, stacks of threads.  Knows not: agents, what to do about it.
A thread asks the loop for a sign of life a few times a second; when none comes in time, the stack of the loop's thread
at that moment shows who holds it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

BLOCKED_S = 0.5  # long enough to be no accident of a busy machine, short enough to be noticed by a person
# The loop is asked so often in the time it may be blocked: the error of what is measured is at most a tenth.
BEATS = 10
_ASYNCIO_FOLDER = str(Path(asyncio.__file__).parent)
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class Blockage:
    """One time the loop was blocked, as seen when it had lasted `blocked_s`."""

    blocked_s: float
    task: str | None
    """Name of the task that runs. None: a plain callback runs."""
    line: str
    """Innermost line of the stack outside asyncio, `file:line in function`."""
    caller: str | None
    """Innermost line outside every library: whose code it is. None: the stack has no such line."""

    def __str__(self) -> str:
        by = f", called by {self.caller}" if self.caller not in (None, self.line) else ""
        return f"event loop blocked for {self.blocked_s:.1f} s by task {self.task!r} at {self.line}{by}"


OnBlocked = Callable[[Blockage], None]


class LoopWatchdog:
    """Watches one running loop from `start` to `stop`, or until the loop is closed. Reports each blockage once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        blocked_s: float = BLOCKED_S,
        on_blocked: OnBlocked | None = None,
    ) -> None:
        """on_blocked: called on the watchdog's thread. None: a warning is logged."""
        self._loop = loop
        self._blocked_s = blocked_s
        self._on_blocked = _log_warning if on_blocked is None else on_blocked
        self._loop_thread: int | None = None
        self._has_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ludus-watchdog", daemon=True)
        self._num_blockages = 0

    @property
    def num_blockages(self) -> int:
        return self._num_blockages

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return once the watchdog's thread has ended. Stopping twice is allowed."""
        self._has_stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LoopWatchdog:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LoopWatchdog(blocked_s={self._blocked_s}, num_blockages={self._num_blockages})"

    def _watch(self) -> None:
        beat_s = self._blocked_s / BEATS
        while not self._has_stopped.wait(beat_s):
            beat = threading.Event()
            asked_at = time.monotonic()
            if not self._ask(beat):
                return
            # The block may have begun just after the last beat: allow for that.
            if not beat.wait(self._blocked_s - beat_s) and not self._has_stopped.is_set():
                self._report(asked_at - beat_s)
                self._wait(beat)

    def _ask(self, beat: threading.Event) -> bool:
        """Whether the loop still takes callbacks."""

        def answer() -> None:
            self._loop_thread = threading.get_ident()
            beat.set()

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _wait(self, beat: threading.Event) -> None:
        while not beat.wait(self._blocked_s / BEATS):
            if self._has_stopped.is_set() or self._loop.is_closed():
                return

    def _report(self, since: float) -> None:
        frames = _callback_frames(sys._current_frames().get(self._loop_thread or 0))
        if not frames:
            return  # the loop waits, has ended or has not begun; the machine is slow, and nobody blocks it
        task = asyncio.current_task(self._loop)
        blockage = Blockage(
            blocked_s=time.monotonic() - since,
            task=None if task is None else task.get_name(),
            line=_line(next(_outside(frames, (_ASYNCIO_FOLDER,)), frames[0])),
            caller=next(map(_line, _outside(frames, _LIBRARY_FOLDERS)), None),
        )
        self._num_blockages += 1
        self._on_blocked(blockage)


def _callback_frames(innermost: FrameType | None) -> list[FrameType]:
    """The frames of the callback that an asyncio loop runs in this stack, innermost first; empty if it runs none."""
    frames: list[FrameType] = []
    at = innermost
    while at is not None:
        if at.f_code is asyncio.Handle._run.__code__:
            return frames
        frames.append(at)
        at = at.f_back
    return []


def _outside(frames: list[FrameType], folders: tuple[str, ...]) -> Iterator[FrameType]:
    """The frames whose code lies in none of `folders`."""
    return (frame for frame in frames if not frame.f_code.co_filename.startswith((*folders, "<frozen")))


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _log_warning(blockage: Blockage) -> None:
    logger.warning("%s; await the call, or run it in a thread", blockage)
