"""The compute lease: engine steps and trainer micro-batches of one process take turns on the same cores and weights.

Knows: threads and tickets.  Knows not: what its holders compute.
Invariants: at most one holder at a time, served in the order of asking, so that neither side starves; a long holder
that gives way takes no more time than those that it shares with; who does not hold it keeps no worker threads.
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
"""Nobody gives way sooner: starting the workers again is then below a hundredth."""
# omp_pause_soft of OpenMP 5.0, section 3.1: what was set stays set.
_PAUSE_SOFT = 1


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


@dataclass(slots=True, eq=False)
class _Ticket:
    name: str
    is_read_only: bool
    since: float
    """When its turn began, or ended because it gave way; before its first turn, when it asked."""


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

        meanwhile: called while it waits, after every `nudge` and after as many seconds as it returned (None: no sooner
        than nudged). It must not ask for the lease.
        is_read_only: it changes nothing that others compute with, and may have its turn where a holder gives way.
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
        """Of the holder, in the middle of its work: who waits and only reads has a turn first. Costs nothing otherwise.

        The holder keeps its turn as long as theirs took last, and at least 10 ms: both have half of the time.
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
        """Whoever waits does now what it has to do meanwhile."""
        with self._changed:
            self._num_nudges += 1
            self._changed.notify_all()

    def _num_readers(self) -> int:
        """How many of those that wait only read, before the first that has to wait for the holder's end."""
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
