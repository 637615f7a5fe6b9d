"""A server as a process that a test may kill: its work waits for files, and its steps are files.

python -m tests.cluster.serve.killable FOLDER PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs, ReportProgress
from ludus.cluster.serve.store import BegunJob, JobStore
from ludus.cluster.serve.wire import RegisterModel
from ludus.http.keys import digest
from ludus.http.server import HttpServer
from tests.cluster.serve.scripted import KEY, ScriptedWorkshop


class FileWorkshop(ScriptedWorkshop):
    """A step is a file; a job waits before and after it for a file `go-before` or `go-after`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def step(self, model: RegisterModel) -> int:
        self.steps = {model.name: len(list(self._folder.glob("step-*")))}
        return self.steps[model.name]

    async def run(self, model: RegisterModel, job: BegunJob, report: ReportProgress) -> Mapping[str, Any]:
        report({"stage": "batch", "num_done": 1, "num_total": 1})
        await self._wait_for("go-before")
        step = await self.step(model) + 1
        (self._folder / f"step-{step}").write_text(job.id)
        report({"stage": "checkpoint", "num_done": 1, "num_total": 1})
        await self._wait_for("go-after")
        return {"step": step, "metrics": {"loss": 0.5}}

    async def result(self, model: RegisterModel, job: BegunJob) -> Mapping[str, Any]:
        return {"step": await self.step(model), "metrics": {}}

    async def _wait_for(self, name: str) -> None:
        while not (self._folder / name).exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.01)


async def main(folder: Path, port: int) -> None:
    job_runner = FileWorkshop(folder)
    with JobStore(folder) as store:
        jobs = Jobs(store, job_runner)
        HttpServer(Api(jobs, job_runner, digest(KEY)).build(), name="server").start(port=port)
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        await jobs.work()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
