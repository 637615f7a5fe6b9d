"""A pool of worker processes: calls wait for a free one; one that was killed or crashed is replaced.

Knows: how many processes, whose turn it is, threads that wait for them.  Knows not: what is called, retries.
Invariants: a process runs one call at a time; processes start when they are first needed; none outlives its pool, or
the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ludus.errors import UserError
from ludus.machine import Machine
from ludus.processes.calls import CallEnd, Crashed, Function, Kwargs, Output, WorkerCall
from ludus.processes.environment import handed_on
from ludus.processes.process import WorkerProcess

OUTPUT_BYTES = 64 * 1024
"""Kept of each stream of a call: a thousand lines, which is more than a person reads."""
START_TIMEOUT_S = 120.0
"""For starting a process and loading a function: importing torch on a busy machine takes half a minute."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Processes for calls that may hang, crash or print without end. For any thread and any event loop.

    Use as a context manager, or call `close`; a pool that is forgotten closes itself.
    """

    def __init__(self, num_workers: int, *, name: str = "worker", env: Mapping[str, str] | None = None) -> None:
        """env: of its processes, whole. None: what of this process's holds no secrets, as `handed_on` has it.

        Where it says nothing of OMP_NUM_THREADS, libraries compute in each with its share of the cores: left alone they
        take all that they see, in every process, whatever its control group allows.
        """
        if num_workers < 1:
            raise UserError(f"num_workers={num_workers} must be at least 1")
        self.num_workers = num_workers
        share = max(1, Machine.look(seconds=0).workers // num_workers)
        self._staff = _Staff(name, [_Slot(f"ludus-{name}-{idx}", env, share) for idx in range(num_workers)])
        self._finalizer = weakref.finalize(self, self._staff.close)

    def __repr__(self) -> str:
        return f"WorkerPool({self._staff!r})"

    def __exit__(self, *_: object) -> None:
        self.close()

    def pids(self) -> tuple[int, ...]:
        """Of the processes that live."""
        return self._staff.pids()

    async def run(self, call: WorkerCall) -> CallEnd:
        """How the call ended, once a process was free for it. Cancelling kills its process."""
        return await self._staff.run(_QueuedCall(call))

    @asynccontextmanager
    async def lease(self, first: WorkerCall) -> AsyncIterator[LeasedWorker]:
        """A process that is the caller's alone for the length of the block, once it has ended the call `first`.

        Raises what `first` raises: such a call loads what the block needs before any clock of the block starts.
        """
        job = _QueuedCall(first, keeps_slot=True)
        try:
            (await self._staff.run(job)).result()
            assert job.slot is not None, "a call that has ended had a slot"
            yield LeasedWorker(self._staff, job.slot)
        finally:
            self._staff.release(job)

    async def call(
        self, function: Function, args: Sequence[Any] = (), kwargs: Kwargs = None, *, timeout_s: float | None = None
    ) -> Any:
        """What the function returns in a process, or raises there; a coroutine function is awaited there.

        timeout_s: from the moment at which the function begins.
        Raises WorkerTimeoutError, WorkerCrashedError, and UserError for what cannot be sent.
        """
        return (await self.run(WorkerCall.of(function, args, kwargs, timeout_s=timeout_s))).result()

    def call_blocking(
        self, function: Function, args: Sequence[Any] = (), kwargs: Kwargs = None, *, timeout_s: float | None = None
    ) -> Any:
        """`call` for code that does not await; it holds up its thread."""
        job = _QueuedCall(WorkerCall.of(function, args, kwargs, timeout_s=timeout_s))
        self._staff.submit(job)
        try:
            return job.future.result().result()
        except KeyboardInterrupt:
            self._staff.cancel(job)
            raise

    def close(self) -> None:
        """Kills all processes; calls that wait or run end as crashed, with the reason that the pool was closed."""
        self._finalizer()


class LeasedWorker:
    """One process of a pool for one caller. For any event loop, one call at a time."""

    def __init__(self, staff: _Staff, slot: _Slot) -> None:
        self._staff = staff
        self._slot = slot

    def __repr__(self) -> str:
        return f"LeasedWorker({self._slot.name})"

    async def run(self, call: WorkerCall) -> CallEnd:
        """As `WorkerPool.run`; if the process has ended, a new one starts in its place."""
        return await self._staff.run(_QueuedCall(call), self._slot)


@dataclass(eq=False)
class _QueuedCall:
    call: WorkerCall
    keeps_slot: bool = False
    """Its slot stays taken after its end, until it is released."""
    future: Future[CallEnd] = field(default_factory=Future)
    slot: _Slot | None = None
    """None: it waits for a slot."""
    is_cancelled: bool = False


class _Slot:
    """One slot of a pool: a thread that waits for the slot's process, which it starts and replaces."""

    def __init__(self, name: str, env: Mapping[str, str] | None, num_threads: int) -> None:
        self.name = name
        self._env = env
        self._num_threads = num_threads
        self.job: _QueuedCall | None = None
        """What the slot runs, or shall. None: nothing."""
        self.holder: _QueuedCall | None = None
        """Whose slot it is also when it runs nothing. None: nobody's."""
        self.next: _QueuedCall | None = None
        """Of its holder, who did not wait for the end of the one before. None: there is none."""
        self.is_busy = False
        """The thread has not come back from its last job."""
        self.process: WorkerProcess | None = None
        self.thread: threading.Thread | None = None

    def run(self, call: WorkerCall, is_wanted: Callable[[], bool]) -> CallEnd | None:
        """How the call ended. None: it was not begun, because nobody wants it any more."""
        if self.process is None:
            env = {"OMP_NUM_THREADS": str(self._num_threads), **(handed_on() if self._env is None else self._env)}
            self.process = WorkerProcess(env=env, output_bytes=OUTPUT_BYTES, start_timeout_s=START_TIMEOUT_S)
        # Asked after the process can be found: whoever changes their mind from here on kills it.
        if not is_wanted():
            return None
        end = self.process.run(call)
        if not self.process.is_alive:
            self.leave()
        return end

    def leave(self) -> None:
        """The slot has no process any more."""
        process, self.process = self.process, None
        if process is not None:
            process.close()


class _Staff:
    """What a pool's threads share; it knows no pool, so that a forgotten pool can be collected."""

    def __init__(self, name: str, slots: Sequence[_Slot]) -> None:
        self._name = name
        self._slots = slots
        self._changed = threading.Condition()
        self._waiting: deque[_QueuedCall] = deque()
        self._free = list(reversed(slots))
        """The last one is asked first: the slot that was used most lately, whose process is warm."""
        self._is_closed = False

    def __repr__(self) -> str:
        busy = len(self._slots) - len(self._free)
        return f"{self._name}, workers={len(self._slots)}, busy={busy}, waiting={len(self._waiting)}"

    def pids(self) -> tuple[int, ...]:
        processes = [slot.process for slot in self._slots]
        return tuple(process.pid for process in processes if process is not None)

    async def run(self, job: _QueuedCall, slot: _Slot | None = None) -> CallEnd:
        """How the job ended; cancelling kills its process. slot: where. None: wherever a slot is free first."""
        self.submit(job, slot)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    def submit(self, job: _QueuedCall, slot: _Slot | None = None) -> None:
        with self._changed:
            if self._is_closed:
                raise UserError(f"the pool {self._name!r} was closed; make a new one")
            if slot is None and not self._free:
                self._waiting.append(job)
            elif slot is not None and slot.is_busy:
                slot.next = job
            else:
                self._give(slot or self._free.pop(), job)

    def release(self, job: _QueuedCall) -> None:
        """The slot that the job kept is free again."""
        with self._changed:
            slot = job.slot
            if slot is not None and slot.holder is job:
                slot.holder = None
                if not slot.is_busy:
                    self._go_on(slot)

    def _give(self, slot: _Slot, job: _QueuedCall) -> None:
        job.slot = slot
        slot.job = job
        slot.is_busy = True
        if job.keeps_slot:
            slot.holder = job
        if slot.thread is None:
            slot.thread = threading.Thread(target=self._serve, args=(slot,), name=slot.name, daemon=True)
            slot.thread.start()
        self._changed.notify_all()

    def _go_on(self, slot: _Slot) -> None:
        """The slot runs what has waited longest, or is free; a slot that is held waits for its holder."""
        if slot.next is not None:
            job, slot.next = slot.next, None
            self._give(slot, job)
        elif slot.holder is not None:
            return
        elif self._waiting:
            self._give(slot, self._waiting.popleft())
        else:
            self._free.append(slot)

    def cancel(self, job: _QueuedCall) -> None:
        """The job's process is killed, or the job is forgotten where it has none yet."""
        with self._changed:
            job.is_cancelled = True
            with contextlib.suppress(ValueError):
                self._waiting.remove(job)
            for slot in self._slots:
                slot.next = None if slot.next is job else slot.next
            self._kill([slot for slot in self._slots if slot.job is job])

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            waiting = [*self._waiting, *(slot.next for slot in self._slots if slot.next is not None)]
            self._waiting.clear()
            self._kill(self._slots)
            self._changed.notify_all()
        for job in waiting:
            _settle(job, self._closed_end())
        for slot in self._slots:
            if slot.thread is not None and slot.thread is not threading.current_thread():
                slot.thread.join()

    def _kill(self, slots: Sequence[_Slot]) -> None:
        for process in [slot.process for slot in slots]:
            if process is not None:
                process.kill()

    def _serve(self, slot: _Slot) -> None:
        """The life of a slot: one job after the other, until the pool is closed."""
        while (job := self._wait_job(slot)) is not None:
            self._play(slot, job)
        slot.leave()

    def _play(self, slot: _Slot, job: _QueuedCall) -> None:
        try:
            end = slot.run(job.call, lambda: not (job.is_cancelled or self._is_closed))
        except Exception as error:  # the boundary of a job: its process could not be started, or not be understood
            slot.leave()
            self._vacate(slot)
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)
            return
        with self._changed:
            slot.job = None
            was_killed = job.is_cancelled  # perhaps after its end; from here on nobody kills for this job
        if was_killed:
            slot.leave()
        if end is None or (self._is_closed and isinstance(end.ending, Crashed)):
            end = self._closed_end()
        self._vacate(slot)
        _settle(job, end)

    def _vacate(self, slot: _Slot) -> None:
        with self._changed:
            slot.job = None
            slot.is_busy = False
            self._go_on(slot)

    def _wait_job(self, slot: _Slot) -> _QueuedCall | None:
        with self._changed:
            self._changed.wait_for(lambda: slot.job is not None or self._is_closed)
            return slot.job

    def _closed_end(self) -> CallEnd:
        return CallEnd(Crashed(f"the pool {self._name!r} was closed"), Output())


def _settle(job: _QueuedCall, end: CallEnd) -> None:
    if job.future.set_running_or_notify_cancel():  # False: who waited has left
        job.future.set_result(end)
