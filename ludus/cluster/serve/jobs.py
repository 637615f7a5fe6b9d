"""The jobs of a server: taken in from any thread, worked on one after the other, watched by whoever asks.

Knows: the store, the order of things.  Knows not: HTTP, what a job does; its job runner does.
Invariants: jobs run in the order in which they were submitted, one at a time, because they share one device; a job
that changed the weights before its server ended is not done again; one that kills its server again and again fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ludus.cluster.serve.store import BegunJob, JobStore
from ludus.cluster.serve.wire import JobEvent, JobView, RegisterModel, SubmitJob, error_view
from ludus.errors import BackendError, LudusError
from ludus.processes.notifier import Notifier

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # a job that killed its server twice may have been unlucky; one that did so three times was not
SECONDS_BETWEEN_TRIES = 5.0  # a person who frees disk space needs longer; one who waits for us not much
ReportProgress = Callable[[Mapping[str, Any]], None]
"""Reports how far a job is, from any thread."""


class JobRunner(Protocol):
    """What works on weights. `check` is called on any thread, the others on one loop, one at a time."""

    def check(self, job: SubmitJob) -> None:
        """Raises AgentError for a kind of job that there is not, or arguments that cannot work."""

    async def step(self, model: RegisterModel) -> int:
        """Steps that the model was trained so far, as it is on disk."""

    async def run(self, model: RegisterModel, job: BegunJob, report: ReportProgress) -> Mapping[str, Any]:
        """The result; what it changed is durable when it returns."""

    async def result(self, model: RegisterModel, job: BegunJob) -> Mapping[str, Any]:
        """Of a job that changed the weights before its server ended."""


class Jobs:
    """Jobs of one store. `work` runs on one loop; everything else may be called from any thread."""

    def __init__(self, store: JobStore, job_runner: JobRunner) -> None:
        self.store = store
        self._job_runner = job_runner
        self._notifier = Notifier()
        self._is_ending = False

    def __repr__(self) -> str:
        return f"Jobs({self.store!r})"

    def submit(self, model: RegisterModel, job: SubmitJob, *, idempotency_key: str | None) -> tuple[JobView, bool]:
        """The job, which will be done whatever happens to us, and whether it is new."""
        self._job_runner.check(job)
        view, is_new = self.store.submit(model.project, model.name, job, idempotency_key=idempotency_key)
        if is_new:
            logger.info("job.submitted id=%s kind=%s model=%s/%s", view.id, job.kind, model.project, model.name)
        self._notifier.notify()
        return view, is_new

    def cancel(self, job_id: str) -> JobView:
        view = self.store.cancel(job_id)
        self._notifier.notify()
        return view

    async def follow(self, job_id: str, *, after: int, keep_alive_s: float) -> AsyncIterator[JobEvent | None]:
        """Events of the job numbered above `after`, as they come, to its last or to our own end.

        None: there was none for so long.
        """
        with self._notifier.listening() as listener:
            while not self._is_ending:
                view = await asyncio.to_thread(self.store.job, job_id)
                for event in await asyncio.to_thread(self.store.events, job_id, after=after):
                    yield event
                    after = event.number
                if view.has_ended:  # as it was before the events were read, so that none is missing
                    return
                if not await listener.wait(keep_alive_s):
                    yield None

    def end_following(self) -> None:
        """Who follows a job is let go; he comes back when the jobs are served again."""
        self._is_ending = True
        self._notifier.notify()

    async def work(self) -> None:
        """Does every job there is and every one that comes, until cancelled; what is left then is done next time."""
        with self._notifier.listening() as listener:
            while True:
                try:
                    job_id = await asyncio.to_thread(self.store.next_job)
                    if job_id is not None:
                        await self._do(job_id)
                except BackendError:  # a disk that is full now: the jobs are there still, and the next time may do
                    logger.exception("jobs.save_failed")
                    await asyncio.sleep(SECONDS_BETWEEN_TRIES)
                else:
                    if job_id is None:
                        await listener.wait()

    async def _do(self, job_id: str) -> None:
        job = self.store.begin(job_id)
        self._notifier.notify()
        logger.info("job.started id=%s kind=%s attempt=%d", job.id, job.kind, job.num_begun)
        try:
            result = await self._result(job)
        except asyncio.CancelledError:
            with suppress(BackendError):  # a disk that is full: it counts, then
                self.store.give_back(job.id)
            raise
        except Exception as error:  # the boundary of a job: whatever it was, the next one is done
            is_ours = not isinstance(error, LudusError)
            logger.warning("job.failed id=%s error=%s", job.id, error, exc_info=is_ours)
            self.store.fail(job.id, error_view(error))
        else:
            self.store.succeed(job.id, result)
            logger.info("job.succeeded id=%s", job.id)
        self._notifier.notify()

    async def _result(self, job: BegunJob) -> Mapping[str, Any]:
        if job.num_begun > MOST_ATTEMPTS:
            raise BackendError(
                f"the server was killed {MOST_ATTEMPTS} times while it worked on this job, perhaps because memory ran "
                "out; its log says more. Submit less at once"
            )
        model = self.store.model(job.project, job.model)
        step = await self._job_runner.step(model)
        if job.base_step is not None and step > job.base_step:
            return await self._job_runner.result(model, job)
        self.store.set_base_step(job.id, step)
        return await self._job_runner.run(model, job, lambda data: self._report(job.id, data))

    def _report(self, job_id: str, data: Mapping[str, Any]) -> None:
        self.store.report(job_id, data)
        self._notifier.notify()
