"""Priority and CPU time of this process together with the processes that a tracker's client has started.

Knows: Linux's lists of threads and processes.  Knows not: trackers.
A client's threads, and its service if it has one (W&B's), work for the run's tracker as this thread does: they take no
more of its cores, and what they take counts. On other systems than Linux only this process is counted, and nothing but
its niceness is lowered.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NICEST = 19
_PROC = Path("/proc")
_TIMES = slice(11, 15)
"""After the name in a process's `stat`: ticks of its own in programs and in the kernel, and of its ended children."""


def run_in_idle_time() -> None:
    """From now on all threads run on idle cores only, and so do those that they start."""
    if sys.platform != "linux":
        return
    # Niceness is not enough: where the kernel groups processes by session it applies within a session only, and this
    # process leads its own; and even at nice 19 it would at times take a core from a parallel matrix product.
    for process in (os.getpid(), *_descendants(os.getpid())):
        with suppress(OSError):
            (_PROC / str(process) / "autogroup").write_text(str(NICEST))
    _schedule(os.SCHED_IDLE)


def run_as_others() -> None:
    """Take that back: the run has ended, and waits."""
    if sys.platform == "linux":
        _schedule(os.SCHED_OTHER)
        with suppress(OSError):  # not every user may
            os.setpriority(os.PRIO_PROCESS, 0, 0)


def cpu_s() -> float:
    """CPU time of this process and of all that it and its children have started."""
    ended = os.times()
    spent_s = time.process_time() + ended.children_user + ended.children_system
    if sys.platform == "linux":
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        spent_s += sum(_ticks(process) for process in _descendants(os.getpid())) * tick_s
    return spent_s


def _schedule(policy: int) -> None:
    for process in (os.getpid(), *_descendants(os.getpid())):
        with suppress(OSError):  # it has ended
            for thread in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError):  # it has ended, or the system does not allow it
                    os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))


def _descendants(process: int) -> Iterator[int]:
    """The living processes that this one has started, and those that they have."""
    with suppress(OSError):
        for children in (_PROC / str(process) / "task").glob("*/children"):
            with suppress(OSError):
                for child in map(int, children.read_text().split()):
                    yield child
                    yield from _descendants(child)


def _ticks(process: int) -> int:
    with suppress(OSError):
        _, _, after_name = (_PROC / str(process) / "stat").read_text().rpartition(")")
        return sum(map(int, after_name.split()[_TIMES]))
    return 0
