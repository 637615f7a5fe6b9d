"""Every kind of job is the call of a backend that it says it is, with what was sent; models load once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ludus.cluster.serve.models import HostedModels
from ludus.cluster.serve.store import BegunJob
from ludus.cluster.serve.wire import RegisterModel, SubmitJob
from ludus.compat.art.backends import (
    InferenceEndpoint,
    OnProgress,
    TrainableSpec,
    TrainConfig,
    TrainProgress,
    TrainResult,
    TrainSFTConfig,
)
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.art.workshop import BackendJobRunner
from ludus.episodes.episodes import Episodes
from ludus.errors import AgentError, UserError

MODEL = RegisterModel(project="mail", name="agent-001", base_model="smollm2-135m", config={"seed": 3})
CHOICE = {"index": 0, "finish_reason": "stop", "turn_id": "t-1", "message": {"role": "assistant", "content": "7"}}
USER = {"role": "user", "content": "Guess."}


NOBODY: Any = None


class ScriptedLoaded:
    episodes = Episodes(NOBODY)

    def last_result(self) -> TrainResult:
        return TrainResult(step=7, metrics={"loss": 0.25}, checkpoint_path="/there/0007")


@dataclass
class ScriptedBackend:
    """Remembers what it is asked."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    loading: threading.Event = field(default_factory=threading.Event)
    """A model is loaded when it is set."""
    error: Exception | None = None
    """What loading a model raises. None: it works."""

    async def register(self, model: TrainableSpec) -> None:
        self.calls.append(("register", model.project, model.name, model.base_model, dict(model.internal_config)))
        await asyncio.to_thread(self.loading.wait)
        if self.error is not None:
            raise self.error

    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        raise NotImplementedError

    async def hosted(self, model: TrainableSpec) -> ScriptedLoaded:
        await self.register(model)
        return ScriptedLoaded()

    async def train(
        self,
        model: TrainableSpec,
        trajectory_groups: Sequence[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> TrainResult:
        assert on_progress is not None and not options
        on_progress(TrainProgress("batch"))
        on_progress(TrainProgress("train", 2, 4, {"loss": 0.5}))
        self.calls.append(("train", model.name, list(trajectory_groups), config))
        return TrainResult(step=8, metrics={"loss": 0.5}, checkpoint_path="/there/0008")

    async def train_sft(
        self,
        model: TrainableSpec,
        trajectories: Sequence[Trajectory],
        config: TrainSFTConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> TrainResult:
        del on_progress
        self.calls.append(("train_sft", model.name, list(trajectories), config))
        return TrainResult(step=8, metrics={})

    async def get_step(self, model: TrainableSpec) -> int:
        del model
        return 7

    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        self.calls.append(("delete_checkpoints", model.name, keep))

    async def fork(
        self,
        model: TrainableSpec,
        from_model: str,
        *,
        from_project: str | None = None,
        not_after_step: int | None = None,
    ) -> int:
        self.calls.append(("fork", model.name, from_model, from_project, not_after_step))
        return 4

    async def close(self) -> None: ...


@pytest.fixture
def backend() -> ScriptedBackend:
    one = ScriptedBackend()
    one.loading.set()
    return one


def run(backend: ScriptedBackend, kind: str, **arguments: Any) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """The result of a job, and what it told meanwhile."""
    job_runner, told = BackendJobRunner(backend), list[Mapping[str, Any]]()
    job_runner.check(SubmitJob(kind=kind, arguments=arguments))
    job = BegunJob("job-1", "mail", "agent-001", kind, arguments, base_step=7, num_begun=1)
    return asyncio.run(job_runner.run(MODEL, job, told.append)), told


def test_train_is_given_groups_as_they_were_sent(backend: ScriptedBackend) -> None:
    """Rewards, metrics, failures and turns are there; only what was set is set; progress and result come back."""
    group = TrajectoryGroup(
        [Trajectory(messages_and_choices=[USER, CHOICE], reward=0.5, metrics={"won": True}), ValueError("lost")],
        metadata={"task_id": "t"},
    )
    sent = group.model_dump(mode="json")
    result, told = run(backend, "train", groups=[sent], config={"learning_rate": 1e-4})
    assert result == {"step": 8, "metrics": {"loss": 0.5}, "checkpoint_path": "/there/0008"}
    assert [(each["stage"], each["num_done"], each["num_total"], each["metrics"]) for each in told] == [
        ("batch", 1, 1, None),
        ("train", 2, 4, {"loss": 0.5}),
    ]
    [(_, name, [trained], config)] = backend.calls
    assert name == "agent-001" and trained.model_dump(mode="json") == sent
    assert trained.trajectories[0].turn_ids() == ["t-1"] and trained.exceptions[0].message == "lost"
    assert config == TrainConfig(learning_rate=1e-4) and config.model_fields_set == {"learning_rate"}


def test_the_other_kinds_are_the_other_calls(backend: ScriptedBackend) -> None:
    """Supervised training and forks."""
    trajectory = Trajectory(messages_and_choices=[USER, {"role": "assistant", "content": "7"}])
    assert run(backend, "train_sft", trajectories=[trajectory.model_dump(mode="json")])[0]["step"] == 8
    assert run(backend, "fork", from_model="other", not_after_step=4) == ({"step": 4}, [])
    [(sft, _, [trained], config), fork] = backend.calls
    assert (sft, trained.messages(), config) == ("train_sft", trajectory.messages(), TrainSFTConfig())
    assert fork == ("fork", "agent-001", "other", None, 4)


@pytest.mark.parametrize("kind", ["train", "train_sft", "fork"])
def test_what_was_done_before_the_server_ended_is_read_from_disk(backend: ScriptedBackend, kind: str) -> None:
    """Step, metrics and checkpoint are those of the step that the job took."""
    job = BegunJob("job-1", "mail", "agent-001", kind, {}, base_step=6, num_begun=2)
    result = asyncio.run(BackendJobRunner(backend).result(MODEL, job))
    whole = {"step": 7, "metrics": {"loss": 0.25}, "checkpoint_path": "/there/0007"}
    assert result == ({"step": 7} if kind == "fork" else whole)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("trian", {}, "did you mean 'train'"),
        ("train", {"group": []}, "did you mean 'groups'"),
        ("train", {"groups": [{"trajectories": [{"reward": "much"}]}]}, "reward"),
        ("train", {"groups": [], "config": {"learning_rat": 1}}, "did you mean 'config.learning_rate'"),
        ("train_sft", {"trajectories": [{"messages_and_choices": [7]}]}, "a mapping with a 'role'"),
        ("fork", {}, "from_model"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_submitted(
    backend: ScriptedBackend, kind: str, arguments: Any, message: str
) -> None:
    """Before the job is kept, with the place of the mistake."""
    with pytest.raises(AgentError, match=message) as refused:
        run(backend, kind, **arguments)
    assert refused.value.code == "invalid_value" and backend.calls == []


def test_a_model_is_loaded_once_and_not_waited_for_too_long(backend: ScriptedBackend) -> None:
    """Who asks while it loads is told so; the backend is asked once, with what was registered."""
    backend.loading.clear()

    async def main() -> None:
        models = HostedModels(backend, asyncio.get_running_loop(), patience_s=0.01)
        assert (await models.view(MODEL)).step is None and backend.calls == []
        assert {(await models.ready(MODEL)).step for _ in range(3)} == {None}
        backend.loading.set()
        while (view := await models.ready(MODEL)).step is None:
            pass
        assert (view.step, view.inference_name) == (7, "agent-001")
        assert view.inference_path == "/m/mail/agent-001/v1"
        await models.keep_checkpoints(MODEL, frozenset({1}))

    asyncio.run(main())
    registered = ("register", "mail", "agent-001", "smollm2-135m", {"seed": 3})
    assert backend.calls == [registered, ("delete_checkpoints", "agent-001", {1})]


def test_what_loading_raises_is_told_and_may_be_tried_again(backend: ScriptedBackend) -> None:
    """A model that was not there is asked for again."""
    backend.error = UserError("there is no model 'smollm2-135m' here")

    async def main() -> None:
        models = HostedModels(backend, asyncio.get_running_loop())
        with pytest.raises(UserError, match="no model 'smollm2-135m' here"):
            await models.ready(MODEL)
        assert (await models.view(MODEL)).step is None
        backend.error = None
        assert (await models.ready(MODEL)).step == 7

    asyncio.run(main())
