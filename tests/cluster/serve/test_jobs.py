"""Jobs are done in order, once, and whatever they raise is reported."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.cluster.serve.jobs import MOST_ATTEMPTS, Jobs
from ludus.cluster.serve.store import JobStore
from ludus.cluster.serve.wire import ErrorView, JobEvent, RegisterModel, SubmitJob
from ludus.errors import AgentError
from tests.cluster.serve.scripted import ScriptedWorkshop

MODEL = RegisterModel(project="mail", name="agent-001", base_model="smollm2-135m")


def submit(jobs: Jobs, **arguments: object) -> str:
    jobs.store.register(MODEL)
    return jobs.submit(MODEL, SubmitJob(kind="train", arguments=arguments), idempotency_key=None)[0].id


async def ended(jobs: Jobs, *job_ids: str) -> None:
    """Works until these jobs have ended."""
    work = asyncio.create_task(jobs.work())
    for job_id in job_ids:
        async for _ in jobs.follow(job_id, after=0, keep_alive_s=5):
            pass
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def test_jobs_run_in_the_order_of_submission(tmp_path: Path) -> None:
    """One after the other; each sees the step that the one before left."""
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop()
        jobs = Jobs(store, job_runner)
        ids = [submit(jobs, name=name) for name in "abc"]
        asyncio.run(ended(jobs, *ids))
        assert job_runner.done == ["a", "b", "c"]
        assert [store.job(one).result for one in ids] == [
            {"step": step, "metrics": {"loss": 0.5}} for step in (1, 2, 3)
        ]


def test_a_job_that_had_changed_the_weights_is_not_done_again(tmp_path: Path) -> None:
    """The server was killed after the step was on disk: the job has its result, and the weights are trained once."""
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop(steps={"agent-001": 4})
        jobs = Jobs(store, job_runner)
        done, not_done = submit(jobs, name="done"), submit(jobs, name="not done")
        store.begin(done)
        store.set_base_step(done, 3)
        asyncio.run(ended(jobs, done, not_done))
        assert job_runner.done == ["not done"]
        assert store.job(done).result == {"step": 4, "metrics": {}, "checkpoint_path": f"found for {done}"}
        assert store.job(not_done).result == {"step": 5, "metrics": {"loss": 0.5}}


def test_a_job_that_had_changed_nothing_is_done_again(tmp_path: Path) -> None:
    """The server was killed before the step was on disk."""
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop(steps={"agent-001": 3})
        jobs = Jobs(store, job_runner)
        job = submit(jobs, name="again")
        store.begin(job)
        store.set_base_step(job, 3)
        asyncio.run(ended(jobs, job))
        assert job_runner.done == ["again"] and job_runner.steps == {"agent-001": 4}


def test_a_job_that_ends_its_server_again_and_again_fails(tmp_path: Path) -> None:
    """The others behind it are done then."""
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop()
        jobs = Jobs(store, job_runner)
        deadly, other = submit(jobs, name="deadly"), submit(jobs, name="other")
        for _ in range(MOST_ATTEMPTS):
            store.begin(deadly)
        asyncio.run(ended(jobs, deadly, other))
        error = store.job(deadly).error
        assert error is not None and error.type == "backend_error" and "3 times" in error.message
        assert job_runner.done == ["other"]


def test_a_server_that_is_told_to_end_is_no_fault_of_its_job(tmp_path: Path) -> None:
    """However often it was: a long job is done in the end."""

    async def told_to_end(jobs: Jobs) -> None:
        work = asyncio.create_task(jobs.work())
        await asyncio.to_thread(job_runner.is_running.wait)
        work.cancel()
        job_runner.gate.set()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    with JobStore(tmp_path) as store:
        job = submit(Jobs(store, ScriptedWorkshop()), name="long")
        for _ in range(MOST_ATTEMPTS):
            job_runner = ScriptedWorkshop(gate=threading.Event())
            asyncio.run(told_to_end(Jobs(store, job_runner)))
            assert store.job(job).state == "running" and not job_runner.done
        asyncio.run(ended(Jobs(store, ScriptedWorkshop()), job))
        assert store.job(job).state == "succeeded"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("x"), ErrorView(type="internal_error", message="KeyError: 'x'", code="internal_error")),
        (
            AgentError("no turn t1", code="no_turn"),
            ErrorView(type="request_error", message="no turn t1", code="no_turn"),
        ),
    ],
)
def test_what_a_job_raises_is_its_error(tmp_path: Path, error: Exception, expected: ErrorView) -> None:
    """An error raised on purpose keeps its kind; any other is ours. The next job is done."""
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop(error=error)
        jobs = Jobs(store, job_runner)
        bad = submit(jobs)
        asyncio.run(ended(jobs, bad))
        assert store.job(bad).error == expected
        job_runner.error = None
        asyncio.run(ended(jobs, submit(jobs, name="next")))
        assert job_runner.done == ["next"]


def test_a_job_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    """Nothing is kept of it."""
    with JobStore(tmp_path) as store:
        jobs = Jobs(store, ScriptedWorkshop())
        with pytest.raises(AgentError, match="unknown kind"):
            jobs.submit(MODEL, SubmitJob(kind="paint"), idempotency_key=None)
        assert store.next_job() is None


def test_who_follows_is_let_go_when_the_server_ends(tmp_path: Path) -> None:
    """At once, and without the job having ended."""

    async def main() -> list[str]:
        follow = jobs.follow(job, after=0, keep_alive_s=60)
        return [event.kind async for event in _until(follow, jobs.end_following) if event is not None]

    async def _until(follow: AsyncIterator[JobEvent | None], then: Callable[[], None]) -> AsyncIterator[Any]:
        async for event in follow:
            yield event
            then()

    with JobStore(tmp_path) as store:
        jobs = Jobs(store, ScriptedWorkshop())
        job = submit(jobs)
        assert asyncio.run(main()) == ["queued"]
        assert store.job(job).state == "queued"
