"""The compute lease: engine steps and trainer micro-batches of one process take turns on the same cores and weights.

Knows: threads and tickets.  Knows not: what its holders compute.
Invariants: at most one holder at a time, served in order of request, so that neither side starves; a long holder that
gives way takes no more time than those it shares with; threads that do not hold the lease keep no worker threads.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SLICE_S = 0.01
"""Shortest time before a holder gives way: restarting the worker threads then costs less than 1 %."""
# omp_pause_soft of OpenMP 5.0, section 3.1: what was set stays set.
_PAUSE_SOFT = 1


def release_workers() -> None:
    """Ends the OpenMP worker threads of the calling thread; its next parallel operation starts new ones.

    Every computing thread has its own workers. As soon as all workers together outnumber the cores, even if most are
    idle, GNU's OpenMP puts them to sleep after every operation and wakes them for the next one, which makes a decoding
    step take 1.7 times as long. Starting new workers takes 50 microseconds.
    Does nothing if no OpenMP of version 5 is loaded.
    """
    try:
        pause = ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, AttributeError, TypeError):  # TypeError: Windows wants a name
        return
    pause(_PAUSE_SOFT)


@dataclass(slots=True, eq=False)
class _Ticket:
    name: str
    is_read_only: bool
    since: float
    """When its turn began, or was interrupted; before its first turn, when it asked."""


class ComputeLease:
    """Fair mutual exclusion between threads. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[_Ticket] = deque()
        self._holder: _Ticket | None = None
        self._slice_s = _SLICE_S
        self._num_nudges = 0

    def __repr__(self) -> str:
        holder = None if self._holder is None else self._holder.name
        return f"ComputeLease(holder={holder!r}, waiting={max(0, len(self._queue) - 1)})"

    @contextmanager
    def hold(
        self, name: str, meanwhile: Callable[[], float | None] | None = None, *, is_read_only: bool = False
    ) -> Iterator[None]:
        """Wait for the turn, then hold the lease for the length of the block.

        meanwhile: called while waiting, after every `nudge` and whenever the number of seconds that it last returned
        has passed (None: only when nudged). It must not ask for the lease.
        is_read_only: changes nothing that others compute with, so it may run while a holder gives way.
        """
        ticket = _Ticket(name, is_read_only, time.perf_counter())
        try:
            self._wait(ticket, meanwhile)
            yield
        finally:  # an interrupt may come at any place, here too: the ticket goes in any case
            try:
                if self._holder is ticket:
                    release_workers()
            finally:
                self._leave(ticket)

    def give_way(self) -> None:
        """Called by the holder in the middle of its work: lets waiting readers run first. Costs nothing if none wait.

        The holder gives way only after having run as long as the readers took last, and at least 10 ms, so that both
        get half of the time.
        """
        with self._changed:
            own = self._holder
            assert own is not None, "only the holder gives way"
            if not self._num_readers() or time.perf_counter() - own.since < self._slice_s:
                return
        release_workers()
        with self._changed:
            num_readers = self._num_readers()
            self._end_turn(own)
            self._queue.popleft()
            self._queue.insert(num_readers, own)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue[0] is own)
            self._slice_s = max(_SLICE_S, time.perf_counter() - own.since)
            self._begin_turn(own)

    def nudge(self) -> None:
        """Make every waiting thread call its `meanwhile` now."""
        with self._changed:
            self._num_nudges += 1
            self._changed.notify_all()

    def _num_readers(self) -> int:
        """The number of readers at the head of the queue, before the first that must wait for the holder to finish."""
        waiting = itertools.islice(self._queue, 1, None)
        return sum(1 for _ in itertools.takewhile(lambda each: each.is_read_only, waiting))

    def _wait(self, ticket: _Ticket, meanwhile: Callable[[], float | None] | None) -> None:
        with self._changed:
            self._queue.append(ticket)
            while self._queue[0] is not ticket:
                if meanwhile is None:
                    self._changed.wait()
                    continue
                seen = self._num_nudges
                self._changed.release()
                try:
                    timeout_s = meanwhile()
                finally:
                    self._changed.acquire()
                if self._queue[0] is not ticket and self._num_nudges == seen:
                    self._changed.wait(timeout_s)
            self._begin_turn(ticket)

    def _begin_turn(self, ticket: _Ticket) -> None:
        self._holder, ticket.since = ticket, time.perf_counter()

    def _end_turn(self, ticket: _Ticket) -> None:
        self._holder, ticket.since = None, time.perf_counter()

    def _leave(self, ticket: _Ticket) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                with self._changed:
                    if self._holder is ticket:
                        self._end_turn(ticket)
                    if ticket in self._queue:
                        self._queue.remove(ticket)
                    self._changed.notify_all()
                break
            except BaseException as error:  # raised once the lease is free
                interrupt = error
        if interrupt is not None:
            raise interrupt
