"""The head's queue of episodes for workers in other processes: who plays what, and what happens if a worker is lost.

Knows: assignments, workers by number, one queue.  Knows not: agents, how a worker plays.
Invariants: an episode is at one worker or in the queue; each ends once, with its report or as lost; what a worker was
sent and did not receive is sent again.

    POST take {free, has} ─▶ {assignments, cancelled}     answered when there is something for the worker
    POST end  {assignment_id, …}
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ludus.http.body import read_body
from ludus.rollout.wire import AssignmentBody, ReportBody, TakeBody, TakenBody, whole_text

T = TypeVar("T")
SERVICE = "rollout"
TAKE_S = 15.0
"""A worker's request is answered after this long even with nothing, so that a live worker keeps asking."""
MAX_REPORT_BYTES = 2**30
"""Enough for the longest context with top logprobs of every token; the head holds a report in memory."""
Worker = tuple[int, int]
"""A worker's number, and which start of its process this is."""


@dataclass(slots=True, eq=False)
class _QueuedEpisode:
    assignment: AssignmentBody
    future: Future[ReportBody | None] = field(default_factory=Future)
    """Resolves to its report, or to None if its worker was lost."""
    worker: Worker | None = None
    """None: it is in the queue."""
    was_seen: bool = False
    """The worker has confirmed that it has the assignment."""
    is_cancelled: bool = False


class WorkQueue:
    """The head's side of all rollout workers. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes: dict[str, _QueuedEpisode] = {}
        self._queue: deque[_QueuedEpisode] = deque()
        self._admitted: set[Worker] = set()
        self._free: dict[Worker, int] = {}
        """Free slots as each worker last reported them, less the assignments given to it since."""
        self._turns: dict[Worker, int] = {}
        """The number of each worker's latest request."""
        self._is_closed = False
        self._num_taken = 0
        """Slots handed out by `acquire_slot`."""
        self._listeners: dict[tuple[asyncio.AbstractEventLoop, asyncio.Event], None] = {}
        """Those waiting for a change, in order of arrival."""

    def __repr__(self) -> str:
        with self._lock:
            slots = self._num_slots()
        return f"WorkQueue(workers={len(self._admitted)}, slots={slots}, playing={len(self._episodes)})"

    def admit(self, index: int, attempt: int) -> None:
        """Add a worker, which reports with each request how many episodes it can play."""
        with self._lock:
            self._admitted.add((index, attempt))
        self._notify()

    def lose(self, index: int) -> None:
        """Remove a worker: the episodes that it was playing are lost."""
        with self._lock:
            for worker in [worker for worker in self._free if worker[0] == index]:
                del self._free[worker]
            self._admitted = {worker for worker in self._admitted if worker[0] != index}
            lost = [
                queued for queued in self._episodes.values() if queued.worker is not None and queued.worker[0] == index
            ]
            for queued in lost:
                del self._episodes[queued.assignment.assignment_id]
        for queued in lost:
            _settle(queued.future, None)

    def close(self) -> None:
        """End the run: waiting requests are answered, and workers that ask are told that it is over."""
        with self._lock:
            self._is_closed = True
        self._notify()

    async def acquire_slot(self) -> None:
        """Wait until some worker has a free slot, which is the caller's until `release_slot`."""
        await self._until(self._take_slot_nowait)

    def release_slot(self) -> None:
        with self._lock:
            self._num_taken -= 1
        self._notify()

    async def play(self, assignment: AssignmentBody) -> ReportBody | None:
        """Have some worker play the assignment; returns its report. None: it was lost. Cancelling ends it there too."""
        queued = _QueuedEpisode(assignment)
        with self._lock:
            self._episodes[assignment.assignment_id] = queued
            self._queue.append(queued)
        self._notify()
        try:
            return await asyncio.wrap_future(queued.future)
        except asyncio.CancelledError:
            with self._lock:
                queued.is_cancelled = True
                if queued in self._queue:
                    self._queue.remove(queued)
                    self._episodes.pop(assignment.assignment_id, None)
            self._notify()
            raise

    async def answer(self, request: Request, index: int) -> Response:
        """Answer a request of the worker with this number; it cannot act for another."""
        rest, body = request.path_params["rest"], await read_body(request, MAX_REPORT_BYTES)
        try:
            if rest == "take":
                asked = TakeBody.of_json(body)
                if asked.index != index:
                    return Response(status_code=403)
                taken = await self._take(asked)
                if self._is_closed:
                    return Response("the run is over", status_code=503)
                return Response(taken.to_json(), media_type="application/json")
            if rest == "end":
                report = ReportBody.of_json(body)
                if report.index != index:
                    return Response(status_code=403)
                self._end(report)
                return Response(status_code=204)
        except ValueError as error:  # no JSON, or not of this kind; asking again would not help
            return Response(whole_text(str(error)), status_code=400)
        return Response(status_code=404)

    # ---- inside

    async def _take(self, asked: TakeBody) -> TakenBody:
        worker = (asked.index, asked.attempt)
        if not self._begin_take(worker, asked):
            return TakenBody()
        try:
            async with asyncio.timeout(TAKE_S):
                return await self._until(lambda: self._take_nowait(worker, asked))
        except TimeoutError:
            return TakenBody()

    async def _until(self, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` again after every change until it returns something other than None."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._listeners[listener] = None
        try:
            while (found := attempt()) is None:
                await listener[1].wait()
                listener[1].clear()
            return found
        finally:
            with self._lock:
                del self._listeners[listener]

    def _begin_take(self, worker: Worker, asked: TakeBody) -> bool:
        """Register a worker's new request: its earlier one is answered empty, what it never received is queued again.

        False: a newer request has already arrived, so this one is outdated.
        """
        has = frozenset(asked.has)
        with self._lock:
            if asked.number <= self._turns.get(worker, -1):
                return False
            self._free[worker] = asked.free
            self._turns[worker] = asked.number
            for queued in [queued for queued in self._episodes.values() if queued.worker == worker]:
                if queued.assignment.assignment_id in has:
                    queued.was_seen = True
                elif queued.is_cancelled:
                    del self._episodes[queued.assignment.assignment_id]
                elif not queued.was_seen:
                    queued.worker = None
                    self._queue.appendleft(queued)
        self._notify()
        return True

    def _take_nowait(self, worker: Worker, asked: TakeBody) -> TakenBody | None:
        """The answer for a worker. None: there is nothing for it yet."""
        with self._lock:
            if self._is_closed or self._turns[worker] != asked.number:
                return TakenBody()  # it asks anew
            if worker not in self._admitted:
                return None  # not yet, or it was given up, which the registry reports to it
            gone = [
                assignment_id
                for assignment_id in asked.has
                if assignment_id not in self._episodes or self._episodes[assignment_id].is_cancelled
            ]
            assignments: list[AssignmentBody] = []
            while self._queue and self._free[worker] > 0:
                queued = self._queue.popleft()
                self._free[worker] -= 1
                queued.worker, queued.was_seen = worker, False
                assignments.append(queued.assignment)
        return TakenBody(assignments=assignments, cancelled=gone) if assignments or gone else None

    def _end(self, report: ReportBody) -> None:
        with self._lock:
            queued = self._episodes.get(report.assignment_id)
            if queued is None or queued.worker != (report.index, report.attempt):
                return  # reported twice, or by a worker that was given up
            del self._episodes[report.assignment_id]
        _settle(queued.future, report)

    def _num_slots(self) -> int:
        """Free and busy slots; not those that a worker is still preparing."""
        playing = sum(queued.worker is not None and not queued.is_cancelled for queued in self._episodes.values())
        return playing + sum(self._free.get(worker, 0) for worker in self._admitted)

    def _take_slot_nowait(self) -> bool | None:
        """True if a slot was taken. None: no worker has a free one."""
        with self._lock:
            if self._num_taken >= self._num_slots():
                return None
            self._num_taken += 1
            return True

    def _notify(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for loop, event in listeners:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def _settle(future: Future[ReportBody | None], report: ReportBody | None) -> None:
    if future.set_running_or_notify_cancel():  # False: nobody waits for it any more
        future.set_result(report)
