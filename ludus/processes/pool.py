"""A pool of worker processes: calls wait for a free process; a killed or crashed process is replaced.

Knows: the number of processes, the queue, threads that wait for processes.  Knows not: what is called, retries.
Invariants: a process runs one call at a time; processes start when they are first needed; none outlives its pool or
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
"""Output kept of each stream of a call: about a thousand lines, more than a person reads."""
START_TIMEOUT_S = 120.0
"""Time limit for starting a process and loading a function: on a busy machine, importing torch takes half a minute."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Processes for calls that may hang, crash or print without end. Safe on any thread and any event loop.

    Use as a context manager, or call `close`; a pool that is garbage-collected closes itself.
    """

    def __init__(self, num_workers: int, *, name: str = "worker", env: Mapping[str, str] | None = None) -> None:
        """env: the complete environment of the processes. None: this process's without secrets, as in `handed_on`.

        If it does not set OMP_NUM_THREADS, that is set to each process's share of the cores: by default libraries use
        all cores that they see, in every process, whatever its control group allows.
        """
        if num_workers < 1:
            raise UserError(f"num_workers={num_workers} must be at least 1")
        self.num_workers = num_workers
        share = max(1, Machine.look(seconds=0).most_threads // num_workers)
        self._staff = _Staff(name, [_Slot(f"ludus-{name}-{idx}", env, share) for idx in range(num_workers)])
        self._finalizer = weakref.finalize(self, self._staff.close)

    def __repr__(self) -> str:
        return f"WorkerPool({self._staff!r})"

    def __exit__(self, *_: object) -> None:
        self.close()

    def pids(self) -> tuple[int, ...]:
        """Pids of the live processes."""
        return self._staff.pids()

    async def run(self, call: WorkerCall) -> CallEnd:
        """Run the call as soon as a process is free; returns how it ended. Cancelling kills the process."""
        return await self._staff.run(_QueuedCall(call))

    @asynccontextmanager
    async def lease(self, first: WorkerCall) -> AsyncIterator[LeasedWorker]:
        """A process for the caller alone, for the length of the block, after it has run the call `first`.

        Raises what `first` raises. It loads what the block needs, before any time limit of the block starts.
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
        """Call a function in a process; returns its result or raises its error. A coroutine function is awaited there.

        timeout_s: counted from the start of the function.
        Raises WorkerTimeoutError, WorkerCrashedError, and UserError for anything that cannot be sent.
        """
        return (await self.run(WorkerCall.of(function, args, kwargs, timeout_s=timeout_s))).result()

    def call_blocking(
        self, function: Function, args: Sequence[Any] = (), kwargs: Kwargs = None, *, timeout_s: float | None = None
    ) -> Any:
        """As `call`, but blocks the calling thread."""
        job = _QueuedCall(WorkerCall.of(function, args, kwargs, timeout_s=timeout_s))
        self._staff.submit(job)
        try:
            return job.future.result().result()
        except KeyboardInterrupt:
            self._staff.cancel(job)
            raise

    def close(self) -> None:
        """Kill all processes; waiting and running calls end as crashed, with the reason that the pool was closed."""
        self._finalizer()


class LeasedWorker:
    """One process of a pool, for one caller. Safe on any event loop, one call at a time."""

    def __init__(self, staff: _Staff, slot: _Slot) -> None:
        self._staff = staff
        self._slot = slot

    def __repr__(self) -> str:
        return f"LeasedWorker({self._slot.name})"

    async def run(self, call: WorkerCall) -> CallEnd:
        """As `WorkerPool.run`; if the process has ended, a new one is started."""
        return await self._staff.run(_QueuedCall(call), self._slot)


@dataclass(eq=False)
class _QueuedCall:
    call: WorkerCall
    keeps_slot: bool = False
    """Whether its slot stays reserved after its end, until it is released."""
    future: Future[CallEnd] = field(default_factory=Future)
    slot: _Slot | None = None
    """None: it is waiting for a slot."""
    is_cancelled: bool = False


class _Slot:
    """One slot of a pool: a thread that starts and replaces the slot's process, and waits for it."""

    def __init__(self, name: str, env: Mapping[str, str] | None, num_threads: int) -> None:
        self.name = name
        self._env = env
        self._num_threads = num_threads
        self.job: _QueuedCall | None = None
        """The job that the slot runs or will run next. None: none."""
        self.holder: _QueuedCall | None = None
        """The job that holds the slot even while nothing runs. None: none."""
        self.next: _QueuedCall | None = None
        """The holder's next job, if it did not wait for the end of the previous one."""
        self.is_busy = False
        """Whether the thread is still at its last job."""
        self.process: WorkerProcess | None = None
        self.thread: threading.Thread | None = None

    def run(self, call: WorkerCall, is_wanted: Callable[[], bool]) -> CallEnd | None:
        """Run the call; returns how it ended. None: it was not started, because it is no longer wanted."""
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
        """Note that the slot has no process any more."""
        process, self.process = self.process, None
        if process is not None:
            process.close()


class _Staff:
    """The state shared by a pool's threads; it has no reference to the pool, so that the pool can be collected."""

    def __init__(self, name: str, slots: Sequence[_Slot]) -> None:
        self._name = name
        self._slots = slots
        self._changed = threading.Condition()
        self._waiting: deque[_QueuedCall] = deque()
        self._free = list(reversed(slots))
        """Free slots; the last one is used first: it was used most recently, and its process is warm."""
        self._is_closed = False

    def __repr__(self) -> str:
        busy = len(self._slots) - len(self._free)
        return f"{self._name}, workers={len(self._slots)}, busy={busy}, waiting={len(self._waiting)}"

    def pids(self) -> tuple[int, ...]:
        processes = [slot.process for slot in self._slots]
        return tuple(process.pid for process in processes if process is not None)

    async def run(self, job: _QueuedCall, slot: _Slot | None = None) -> CallEnd:
        """Run the job; returns how it ended. Cancelling kills its process. slot: None: the first that is free."""
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
        """Free the slot that the job kept."""
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
        """Start the longest waiting job on the slot, or mark it free; a held slot waits for its holder."""
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
        """Kill the job's process, or drop the job if it has none yet."""
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
        """Run a slot's jobs one after the other, until the pool is closed."""
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
