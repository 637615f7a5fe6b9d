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
from collections.abc import Callable, Iterator, Mapping
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
        self._num_nudges = 0
        self._held_s: dict[str, float] = defaultdict(float)
        self._waited_s: dict[str, float] = defaultdict(float)

    def __repr__(self) -> str:
        return f"ComputeLease(holder={self._holder!r}, waiting={max(0, len(self._queue) - 1)})"

    @contextmanager
    def hold(self, name: str, meanwhile: Callable[[], float | None] | None = None) -> Iterator[None]:
        """Wait for the turn, then hold the lease for the length of the block.

        meanwhile: called while it waits, after every `nudge` and after as many seconds as it returned (None: no sooner
        than nudged). It must not ask for the lease.
        """
        ticket, asked_at, started_at = object(), time.perf_counter(), None
        try:
            self._wait(ticket, meanwhile)
            started_at = time.perf_counter()
            self._holder = name
            yield
        finally:  # an interrupt may come at any place, here too: the ticket goes in any case
            try:
                if started_at is not None:
                    release_workers()
            finally:
                self._leave(ticket, name, asked_at, started_at)

    def nudge(self) -> None:
        """Whoever waits does now what it has to do meanwhile."""
        with self._changed:
            self._num_nudges += 1
            self._changed.notify_all()

    def _wait(self, ticket: object, meanwhile: Callable[[], float | None] | None) -> None:
        with self._changed:
            self._queue.append(ticket)
            if meanwhile is None:
                self._changed.wait_for(lambda: self._queue[0] is ticket)
                return
            while self._queue[0] is not ticket:
                seen = self._num_nudges
                self._changed.release()
                try:
                    timeout_s = meanwhile()
                finally:
                    self._changed.acquire()
                if self._queue[0] is not ticket and self._num_nudges == seen:
                    self._changed.wait(timeout_s)

    def _leave(self, ticket: object, name: str, asked_at: float, started_at: float | None) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                with self._changed:
                    if ticket in self._queue:
                        if started_at is not None:
                            self._holder = None
                            self._held_s[name] += time.perf_counter() - started_at
                            self._waited_s[name] += started_at - asked_at
                        self._queue.remove(ticket)
                    self._changed.notify_all()
                break
            except BaseException as error:  # raised once the lease is free
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def stats(self) -> LeaseStats:
        with self._changed:
            return LeaseStats(held_s=dict(self._held_s), waited_s=dict(self._waited_s))
