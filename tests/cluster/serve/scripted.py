"""A server of training whose work is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs, ReportProgress
from ludus.cluster.serve.store import BegunJob, JobStore
from ludus.cluster.serve.wire import ModelView, RegisterModel, SubmitJob
from ludus.episodes.outcome import Ending
from ludus.errors import AgentError
from ludus.http.keys import digest
from ludus.http.server import HttpServer
from ludus.http.tls import Tls

KEY = "the-key-of-the-tests-of-serve"


def open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass
class ScriptedWorkshop:
    """Counts steps in a dict; does nothing else."""

    steps: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=open_gate)
    """Jobs run until it is set."""
    error: Exception | None = None
    """What every job raises. None: it is done."""
    num_reports: int = 0
    """How often a job tells how far it is."""
    is_running: threading.Event = field(default_factory=threading.Event)
    """Set once a job has begun to wait for the gate."""
    num_looks_until_ready: int = 0
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    """Kind and arguments of the jobs that were run."""
    ended: list[tuple[str, Ending]] = field(default_factory=list)
    """Sessions by name, and how their rollouts ended."""

    def check(self, job: SubmitJob) -> None:
        if job.kind not in ("train", "train_sft", "fork"):
            raise AgentError(f"unknown kind of job {job.kind!r}", code="invalid_value", param="kind")

    async def step(self, model: RegisterModel) -> int:
        return self.steps.get(model.name, 0)

    async def run(self, model: RegisterModel, job: BegunJob, report: ReportProgress) -> Mapping[str, Any]:
        self.asked.append((job.kind, job.arguments))
        for number in range(self.num_reports):
            report({"stage": "train", "num_done": number + 1, "num_total": self.num_reports})
        self.is_running.set()
        await asyncio.to_thread(self.gate.wait)
        if self.error is not None:
            raise self.error
        self.done.append(str(job.arguments.get("name")))
        self.steps[model.name] = self.steps.get(model.name, 0) + 1
        return {"step": self.steps[model.name], "metrics": {"loss": 0.5}}

    async def result(self, model: RegisterModel, job: BegunJob) -> Mapping[str, Any]:
        return {"step": self.steps[model.name], "metrics": {}, "checkpoint_path": f"found for {job.id}"}

    # ---- as Models

    async def ready(self, model: RegisterModel) -> ModelView:
        self.num_looks_until_ready -= 1
        return await self.view(model)

    async def view(self, model: RegisterModel) -> ModelView:
        return ModelView.of(model, self.steps.get(model.name, 0) if self.num_looks_until_ready <= 0 else None)

    async def keep_checkpoints(self, model: RegisterModel, steps: frozenset[int]) -> ModelView:
        self.done.append(f"kept {sorted(steps)}")
        return await self.view(model)

    async def gateway(self, model: RegisterModel) -> ScriptedGateway:
        return ScriptedGateway(model.name, self)


@dataclass
class ScriptedGateway:
    """Answers with what it was asked."""

    name: str
    job_runner: ScriptedWorkshop

    async def app(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"model": self.name, "path": scope["path"], "session": name})(scope, receive, send)

    async def end(self, name: str, ending: Ending) -> None:
        self.job_runner.ended.append((name, ending))


@dataclass
class Served:
    """A running server."""

    url: str
    job_runner: ScriptedWorkshop
    store: JobStore
    http: HttpServer


@contextlib.contextmanager
def serving(folder: Path, job_runner: ScriptedWorkshop, *, port: int = 0, tls: Tls | None = None) -> Iterator[Served]:
    """Serves until the block ends; the jobs run on a thread of their own."""
    with JobStore(folder) as store:
        jobs = Jobs(store, job_runner)
        app = Api(jobs, job_runner, digest(KEY), keep_alive_s=0.05).build()
        server = HttpServer(app, name="server", is_guarded=True, tls=tls)
        with working(jobs):
            server.start(port=port)
            try:
                yield Served(server.base_url, job_runner, store, server)
            finally:
                server.stop()


@contextlib.contextmanager
def working(jobs: Jobs) -> Iterator[None]:
    """Does jobs until the block ends."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(jobs.work())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
