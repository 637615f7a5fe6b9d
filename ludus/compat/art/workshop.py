"""Runs the jobs of a training server with a backend: maps each kind of job to a call and its arguments.

Knows: backends, the wire.  Knows not: HTTP, the store, how a step is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ludus.cluster.serve.jobs import ReportProgress
from ludus.cluster.serve.store import BegunJob
from ludus.cluster.serve.wire import RegisterModel, SubmitJob
from ludus.compat.art.backends import ForkArguments, TrainArguments, TrainProgress, TrainSFTArguments
from ludus.compat.art.local_backend import LocalBackend
from ludus.errors import AgentError, LudusError
from ludus.settings import did_you_mean

Arguments = TrainArguments | TrainSFTArguments | ForkArguments
_KINDS: Mapping[str, type[Arguments]] = {form.kind: form for form in (TrainArguments, TrainSFTArguments, ForkArguments)}


class BackendJobRunner:
    """A `JobRunner` whose jobs are calls of `backend`."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return f"BackendJobRunner({self._backend!r})"

    def check(self, job: SubmitJob) -> None:
        _read(job.kind, job.arguments)

    async def step(self, model: RegisterModel) -> int:
        return await self._backend.get_step(model)

    async def run(self, model: RegisterModel, job: BegunJob, report: ReportProgress) -> Mapping[str, Any]:
        def on_progress(progress: TrainProgress) -> None:
            report(asdict(progress))

        match asked := _read(job.kind, job.arguments):
            case ForkArguments():
                return {"step": await self._backend.fork(model, **asked.model_dump())}
            case TrainArguments():
                result = await self._backend.train(model, asked.groups, asked.config, on_progress=on_progress)
            case TrainSFTArguments():
                result = await self._backend.train_sft(model, asked.trajectories, asked.config, on_progress=on_progress)
        return result.model_dump(mode="json")

    async def result(self, model: RegisterModel, job: BegunJob) -> Mapping[str, Any]:
        if job.kind == "fork":
            return {"step": await self._backend.get_step(model)}
        return (await self._backend.hosted(model)).last_result().model_dump(mode="json")


def _read(kind: str, arguments: Mapping[str, Any]) -> Arguments:
    if kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS)
        known = f"Known: {', '.join(_KINDS)}"
        raise AgentError(f"kind={kind!r} is no kind of job{hint} {known}", code="invalid_value", param="kind")
    try:
        return _KINDS[kind](**arguments)
    except LudusError as error:
        raise AgentError(str(error), code="invalid_value", param="arguments") from error
