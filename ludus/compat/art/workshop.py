"""The jobs of a training server, done by a backend: which call each kind of job is, and what its arguments are.

Knows: backends, trajectories, the wire.  Knows not: HTTP, the store, how a step is computed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pydantic

from ludus.cluster.serve.job_runner import Described, Loaded
from ludus.cluster.serve.jobs import ReportProgress
from ludus.cluster.serve.store import BegunJob
from ludus.cluster.serve.wire import RegisterModel, SubmitJob
from ludus.compat.art.backends import (
    Backend,
    OnProgress,
    TrainableSpec,
    TrainConfig,
    TrainProgress,
    TrainResult,
    TrainSFTConfig,
)
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import AgentError, LudusError
from ludus.settings import Settings, did_you_mean


class LoadedModel(Loaded, Protocol):
    """A model that a backend has loaded, as far as its jobs need it."""

    def last_result(self) -> TrainResult:
        """Of the newest step, as it is on disk."""


class ServableBackend(Backend, Protocol):
    """A backend whose models are in this process."""

    async def hosted(self, model: TrainableSpec) -> LoadedModel:
        """The model itself, loaded."""


class TrainArguments(Settings):
    """Of a step on trajectories that were rewarded."""

    groups: list[TrajectoryGroup]
    config: TrainConfig = pydantic.Field(default_factory=TrainConfig)


class TrainSFTArguments(Settings):
    """Of supervised training."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig = pydantic.Field(default_factory=TrainSFTConfig)


class ForkArguments(Settings):
    """Of a beginning with another model's weights."""

    from_model: str
    from_project: str | None = None
    not_after_step: int | None = None


class BackendJobRunner:
    """A `JobRunner` whose jobs are calls of `backend`."""

    def __init__(self, backend: ServableBackend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return f"BackendJobRunner({self._backend!r})"

    def check(self, job: SubmitJob) -> None:
        _read(job.kind, job.arguments)

    async def step(self, model: RegisterModel) -> int:
        return await self._backend.get_step(Described.of(model))

    async def run(self, model: RegisterModel, job: BegunJob, report: ReportProgress) -> Mapping[str, Any]:
        def on_progress(progress: TrainProgress) -> None:
            report(asdict(progress))

        return await _KINDS[job.kind].run(
            self._backend, Described.of(model), _read(job.kind, job.arguments), on_progress
        )

    async def result(self, model: RegisterModel, job: BegunJob) -> Mapping[str, Any]:
        if job.kind == "fork":
            return {"step": await self._backend.get_step(Described.of(model))}
        return (await self._backend.hosted(Described.of(model))).last_result().model_dump(mode="json")


async def _train(
    backend: Backend, model: Described, asked: TrainArguments, on_progress: OnProgress
) -> Mapping[str, Any]:
    return (await backend.train(model, asked.groups, asked.config, on_progress=on_progress)).model_dump(mode="json")


async def _train_sft(
    backend: Backend, model: Described, asked: TrainSFTArguments, on_progress: OnProgress
) -> Mapping[str, Any]:
    result = await backend.train_sft(model, asked.trajectories, asked.config, on_progress=on_progress)
    return result.model_dump(mode="json")


async def _fork(backend: Backend, model: Described, asked: ForkArguments, _: OnProgress) -> Mapping[str, Any]:
    step = await backend.fork(
        model, asked.from_model, from_project=asked.from_project, not_after_step=asked.not_after_step
    )
    return {"step": step}


@dataclass(frozen=True, slots=True)
class _Kind:
    form: type[Settings]
    run: Callable[[Backend, Described, Any, OnProgress], Awaitable[Mapping[str, Any]]]


_KINDS: Mapping[str, _Kind] = {
    "train": _Kind(TrainArguments, _train),
    "train_sft": _Kind(TrainSFTArguments, _train_sft),
    "fork": _Kind(ForkArguments, _fork),
}


def _read(kind: str, arguments: Mapping[str, Any]) -> Settings:
    if kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS)
        known = f"known: {', '.join(_KINDS)}"
        raise AgentError(f"kind={kind!r} is no kind of job{hint} {known}", code="invalid_value", param="kind")
    try:
        return _KINDS[kind].form(**arguments)
    except LudusError as error:
        raise AgentError(str(error), code="invalid_value", param="arguments") from error
