"""Episodes dispatched to workers in other processes: who plays what, and what becomes of it when a worker is lost.

Knows: assignments, workers by number, one queue.  Knows not: agents, how a worker plays.
Invariants: an episode is at one worker or in the queue; each ends once, with its report or as lost; what a worker was
sent and never received is sent again.

    POST take {free, has} ─▶ {assignments, cancelled}     waits until there is something to say
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
"""A worker that asks is answered after so long even if there is nothing for it: so it is known to be alive."""
MAX_REPORT_BYTES = 2**30
"""Of an episode of the longest context with the rivals of every token; the head holds it in memory."""
Worker = tuple[int, int]
"""Number and start of a worker's process."""


@dataclass(slots=True, eq=False)
class _QueuedEpisode:
    assignment: AssignmentBody
    future: Future[ReportBody | None] = field(default_factory=Future)
    """Its report. None: its worker was lost."""
    worker: Worker | None = None
    """None: it waits for one."""
    was_seen: bool = False
    """The worker has said that it has it."""
    is_cancelled: bool = False


class WorkQueue:
    """The head's side of all rollout workers. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes: dict[str, _QueuedEpisode] = {}
        self._queue: deque[_QueuedEpisode] = deque()
        self._admitted: set[Worker] = set()
        self._free: dict[Worker, int] = {}
        """Slots as each worker reported them last, less the assignments that it was given since."""
        self._turns: dict[Worker, int] = {}
        """The number of the request by which each worker asked last."""
        self._is_closed = False
        self._num_taken = 0
        """Slots that `acquire_slot` gave."""
        self._listeners: dict[tuple[asyncio.AbstractEventLoop, asyncio.Event], None] = {}
        """Who waits for a change, the first to come first."""

    def __repr__(self) -> str:
        with self._lock:
            slots = self._num_slots()
        return f"WorkQueue(workers={len(self._admitted)}, slots={slots}, playing={len(self._episodes)})"

    def admit(self, index: int, attempt: int) -> None:
        """A worker is there. How many episodes it can play, it reports with each request."""
        with self._lock:
            self._admitted.add((index, attempt))
        self._notify()

    def lose(self, index: int) -> None:
        """The worker is gone: what it played is lost."""
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
        """The run is over: who asks for episodes is told so, and nobody is held up by a request that waits for one."""
        with self._lock:
            self._is_closed = True
        self._notify()

    async def acquire_slot(self) -> None:
        """Returns when some worker has a slot for one episode more, which is the caller's until `release_slot`."""
        await self._until(self._take_slot_nowait)

    def release_slot(self) -> None:
        with self._lock:
            self._num_taken -= 1
        self._notify()

    async def play(self, assignment: AssignmentBody) -> ReportBody | None:
        """How the assignment ended at some worker. None: it was lost there. Cancelling ends it there."""
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
        """The request of the worker of this number, which speaks for no other."""
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
        """What `attempt` gives, which is tried again whenever something has changed. None: nothing yet."""
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
        """A worker asks anew: what it asked before is answered with nothing, and what it never received waits again.

        False: it has asked anew since, and this came late; what it says of slots and episodes is no longer so.
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
        """What there is to say to a worker. None: nothing."""
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
        """Those that are free, and those of what is played; not those that a worker has to make ready again."""
        playing = sum(queued.worker is not None and not queued.is_cancelled for queued in self._episodes.values())
        return playing + sum(self._free.get(worker, 0) for worker in self._admitted)

    def _take_slot_nowait(self) -> bool | None:
        """None: no worker has one free."""
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
