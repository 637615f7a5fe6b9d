"""Names the user's code that blocks an event loop, while it is blocking.

Knows: one event loop, stacks of threads.  Knows not: agents, what to do about it.
A thread pings the loop several times a second. When no answer comes in time, the stack of the loop's thread shows what
blocks it. A loop may also be late because the machine is busy and its thread is not scheduled. Therefore only the
user's code is named (never a library's, nor our own, which awaits), and only if the same callback is seen inside it in
several samples in a row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

logger = logging.getLogger(__name__)

BLOCKED_S = 0.5  # long enough to be no accident of a busy machine, short enough to be noticed by a person
# The loop is asked so often in the time it may be blocked: the error of what is measured is at most a tenth.
BEATS = 10
# So many samples in a row must show the same: half the time that a loop may be blocked, as long as a starved thread
# would hardly stay inside one callback.
NUM_SAMPLES = BEATS // 2
_ASYNCIO_FOLDER = str(Path(asyncio.__file__).parent)
_OWN_FOLDER = str(Path(__file__).parent.parent) + os.sep
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class Blockage:
    """One time that the loop was blocked, as seen after it had lasted `blocked_s`."""

    blocked_s: float
    task: str | None
    """Name of the running task. None: a plain callback is running."""
    line: str
    """Innermost line of the stack outside asyncio, `file:line in function`."""
    caller: str
    """Innermost line of the user's own code; libraries below it were called from there."""

    def __str__(self) -> str:
        by = f", called by {self.caller}" if self.caller != self.line else ""
        return f"event loop blocked for {self.blocked_s:.1f} s by task {self.task!r} at {self.line}{by}"


OnBlocked = Callable[[Blockage], None]


@dataclass(frozen=True, slots=True)
class _Sample:
    """The stack of the loop's thread at one moment, inside the user's code."""

    callback: FrameType
    """Frame of the running callback: another run has another frame, even at the same line."""
    innermost: FrameType
    """Innermost frame outside asyncio."""
    user: FrameType
    """Innermost frame of the user's code."""


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
        self.num_blockages = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once the watchdog's thread has ended. Stopping twice is allowed."""
        self._has_stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LoopWatchdog:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LoopWatchdog(blocked_s={self._blocked_s}, num_blockages={self.num_blockages})"

    def _watch(self) -> None:
        beat_s = self._blocked_s / BEATS
        while not self._has_stopped.wait(beat_s):
            beat = threading.Event()
            asked_at = time.monotonic()
            if not self._ask(beat):
                return
            # The block may have begun just after the last beat: allow for that.
            if not beat.wait(self._blocked_s - beat_s):
                self._name_blocker(beat, asked_at - beat_s)

    def _ask(self, beat: threading.Event) -> bool:
        """Ping the loop, which sets `beat`. Returns whether the loop still takes callbacks."""

        def answer() -> None:
            self._loop_thread = threading.get_ident()
            beat.set()

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _name_blocker(self, beat: threading.Event, since: float) -> None:
        """Sample the stack until the loop answers; report the first callback that several samples in a row show."""
        before: _Sample | None = None
        num_alike = 0
        while not (beat.is_set() or self._has_stopped.is_set() or self._loop.is_closed()):
            if num_alike < NUM_SAMPLES:
                now = _sample(sys._current_frames().get(self._loop_thread or 0))
                is_alike = now is not None and before is not None and now.callback is before.callback
                num_alike = num_alike + 1 if is_alike else 1
                before = now
                if now is not None and num_alike == NUM_SAMPLES:
                    self._report(now, since)
            beat.wait(self._blocked_s / BEATS)

    def _report(self, sample: _Sample, since: float) -> None:
        task = asyncio.current_task(self._loop)
        blockage = Blockage(
            blocked_s=time.monotonic() - since,
            task=None if task is None else task.get_name(),
            line=_line(sample.innermost),
            caller=_line(sample.user),
        )
        self.num_blockages += 1
        self._on_blocked(blockage)


def _sample(innermost: FrameType | None) -> _Sample | None:
    """What an asyncio loop runs in this stack. None: nothing, or nothing of the user's."""
    frames: list[FrameType] = []
    at = innermost
    while at is not None and at.f_code is not asyncio.Handle._run.__code__:
        frames.append(at)
        at = at.f_back
    user = _user_frame(frames)
    if at is None or user is None:
        return None
    outside_asyncio = (each for each in frames if not each.f_code.co_filename.startswith((_ASYNCIO_FOLDER, "<frozen")))
    return _Sample(callback=at, innermost=next(outside_asyncio), user=user)


def _user_frame(frames: list[FrameType]) -> FrameType | None:
    """The innermost frame of the user's code. None: there is none, or that code awaits ours."""
    for frame in frames:
        if frame.f_code.co_filename.startswith(_OWN_FOLDER):
            return None
        if not frame.f_code.co_filename.startswith((*_LIBRARY_FOLDERS, "<frozen")):
            return frame
    return None


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _log_warning(blockage: Blockage) -> None:
    logger.warning("%s; await the call, or run it in a thread", blockage)
