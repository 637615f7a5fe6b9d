"""The compute lease: engine steps and trainer micro-batches of one process take turns on the same cores and weights.

Knows: threads and tickets.  Knows not: what its holders compute.
Invariants: at most one holder at a time, served in the order of asking, so that neither side starves; who does not
hold it keeps no worker threads.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# omp_pause_soft of OpenMP 5.0, section 3.1: what was set stays set.
_PAUSE_SOFT = 1


@dataclass(frozen=True, slots=True)
class LeaseStats:
    """Seconds since the lease was made, by name of the holder."""

    held_s: Mapping[str, float]
    waited_s: Mapping[str, float]


def release_workers() -> None:
    """Ends the OpenMP worker threads of the calling thread; its next parallel operation starts new ones.

    Every thread that computes has workers of its own. As soon as those of all threads together outnumber the cores,
    also if most of them rest, GNU's OpenMP lets workers fall asleep between any two operations and wakes them for
    the next one: a step of decoding takes 1.7 times as long. Starting workers again takes 50 microseconds.
    Does nothing where no OpenMP of version 5 is loaded.
    """
    try:
        pause = ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, AttributeError, TypeError):  # TypeError: Windows wants a name
        return
    pause(_PAUSE_SOFT)


class ComputeLease:
    """Fair mutual exclusion between threads. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._holder: str | None = None
        self._held_s: dict[str, float] = defaultdict(float)
        self._waited_s: dict[str, float] = defaultdict(float)

    def __repr__(self) -> str:
        return f"ComputeLease(holder={self._holder!r}, waiting={max(0, len(self._queue) - 1)})"

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the turn, then hold the lease for the length of the block."""
        ticket, asked_at = object(), time.perf_counter()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket)
            except BaseException:  # an interrupt while waiting must not block those behind
                self._queue.remove(ticket)
                self._changed.notify_all()
                raise
            self._holder = name
        started_at = time.perf_counter()
        try:
            yield
        finally:
            release_workers()
            held_s = time.perf_counter() - started_at
            with self._changed:
                self._queue.popleft()
                self._holder = None
                self._held_s[name] += held_s
                self._waited_s[name] += started_at - asked_at
                self._changed.notify_all()

    def stats(self) -> LeaseStats:
        with self._changed:
            return LeaseStats(held_s=dict(self._held_s), waited_s=dict(self._waited_s))
