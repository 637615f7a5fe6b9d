"""`ServerBackend` against a server whose work is scripted: every call, every error, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.backends import TrainConfig, TrainProgress, TrainSFTConfig
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.rollout import Gathering, Rollout, play_rollout
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from ludus.episodes.outcome import Reported
from ludus.errors import AgentError, BackendError, ConfigError, InternalError, UserError
from tests.cluster.serve.scripted import KEY, ScriptedWorkshop, Served, serving
from tests.cluster.serve.specs import Model

CHOICE = {
    "index": 0,
    "finish_reason": "stop",
    "turn_id": "t-1",
    "message": {"role": "assistant", "content": "7"},
    "logprobs": {"content": [{"token": "7", "logprob": -0.5}]},
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "server", ScriptedWorkshop()) as one:
        yield one


def groups() -> list[TrajectoryGroup]:
    user = {"role": "user", "content": "Guess."}
    return [TrajectoryGroup([Trajectory(messages_and_choices=[user, CHOICE], reward=reward) for reward in (0.0, 1.0)])]


def backend_of(served: Served, **options: Any) -> ServerBackend:
    return ServerBackend(served.url, KEY, **{"patience_s": 20.0, **options})


def test_every_call_of_a_backend_reaches_the_server(served: Served) -> None:
    """Register, train, fork, step, checkpoints: what is asked arrives, what comes back is told."""

    async def main() -> None:
        backend, model = backend_of(served), Model()
        served.job_runner.num_looks_until_ready = 3
        await backend.register(model)
        assert served.job_runner.num_looks_until_ready <= 0
        assert await backend.get_step(model) == 0
        result = await backend.train(model, groups(), TrainConfig(learning_rate=1e-4))
        assert (result.step, result.metrics) == (1, {"loss": 0.5})
        await backend.train_sft(model, groups()[0].trajectories, TrainSFTConfig(epochs=2))
        assert await backend.fork(model, "other", not_after_step=4) == 3
        assert await backend.get_step(model) == 3
        await backend.delete_checkpoints(model, {3, 1})
        await backend.close()

    asyncio.run(main())
    assert [kind for kind, _ in served.job_runner.asked] == ["train", "train_sft", "fork"]
    train, sft, fork = (arguments for _, arguments in served.job_runner.asked)
    assert train["config"] == {"learning_rate": 1e-4} and sft["config"] == {"epochs": 2}
    assert fork == {"from_model": "other", "from_project": None, "not_after_step": 4}
    [group] = [TrajectoryGroup(**group) for group in train["groups"]]
    assert [each.reward for each in group] == [0.0, 1.0] and group.trajectories[0].turn_ids() == ["t-1"]
    assert "logprobs" not in train["groups"][0]["trajectories"][0]["messages_and_choices"][1]
    assert len(sft["trajectories"]) == 2
    assert served.job_runner.done[-1] == "kept [1, 3]"


def test_options_of_a_call_stand_in_for_a_config(served: Served) -> None:
    """ART's form: `backend.train(model, groups, learning_rate=…)`; what is no option is an error here."""

    async def main() -> None:
        backend = backend_of(served)
        await backend.register(Model())
        await backend.train(Model(), groups(), learning_rate=2e-5)
        with pytest.raises(ConfigError, match="learning_rate"):
            await backend.train(Model(), groups(), learning_rat=2e-5)

    asyncio.run(main())
    assert served.job_runner.asked[0][1]["config"] == {"learning_rate": 2e-5}


def test_progress_is_told_while_it_goes_on(served: Served) -> None:
    """Each event of the server once, in order, as the progress that it was there."""
    told: list[TrainProgress] = []
    served.job_runner.num_reports = 3

    async def main() -> None:
        backend = backend_of(served)
        await backend.register(Model())
        await backend.train(Model(), groups(), on_progress=told.append)

    asyncio.run(main())
    assert told == [TrainProgress("train", number, 3) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "error",
    [
        UserError("the choice names a turn that no record holds"),
        ConfigError("epsilon cannot act"),
        AgentError("the session has no turn", status=400, code="no_turn", param="groups"),
        BackendError("out of memory"),
        InternalError("the ledger does not balance"),
    ],
)
def test_an_error_there_is_the_same_error_here(served: Served, error: Exception) -> None:
    """Kind, message and code are sent."""
    served.job_runner.error = error

    async def main() -> None:
        backend = backend_of(served)
        await backend.register(Model())
        await backend.train(Model(), groups())

    with pytest.raises(type(error)) as raised:
        asyncio.run(main())
    assert type(raised.value) is type(error) and str(raised.value) == str(error)
    if isinstance(error, AgentError):
        assert isinstance(raised.value, AgentError) and raised.value.code == error.code


def test_one_idempotency_key_is_one_step(served: Served) -> None:
    """A script that was restarted and sends the same step again does not train it twice."""

    async def main() -> None:
        for _ in range(2):
            backend = backend_of(served)
            await backend.register(Model())
            result = await backend.train(Model(), groups(), idempotency_key="epoch 0, batch 3".replace(" ", "-"))
            assert result.step == 1

    asyncio.run(main())
    assert served.job_runner.steps == {"agent-001": 1}


def test_a_server_that_is_restarted_meanwhile_is_waited_for(tmp_path: Path) -> None:
    """It goes away while a job runs and comes back: the call returns the result, and the step was taken once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job_runner = ScriptedWorkshop()

    async def main(url: str) -> Any:
        backend = ServerBackend(url, KEY, patience_s=20)
        await backend.register(Model())
        return await backend.train(Model(), groups())

    results: list[Any] = []
    job_runner.gate.clear()
    with serving(tmp_path, job_runner, port=port) as served:
        client = threading.Thread(target=lambda: results.append(asyncio.run(main(served.url))))
        client.start()
        assert job_runner.is_running.wait(timeout=10)
        served.http.stop()
        job_runner.gate.set()
    with serving(tmp_path, job_runner, port=port):
        client.join(timeout=20)
    assert results and results[0].step == 1 and job_runner.steps == {"agent-001": 1}


def test_nobody_there_is_an_error_once_patience_runs_out() -> None:
    """It says what to do; a URL that is none, a key that is none and another server's are said at once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BackendError, match="ludus serve"):
        asyncio.run(ServerBackend(url, KEY, patience_s=0.3).register(Model()))
    with pytest.raises(UserError, match="no address of a server"):
        ServerBackend("gpu-box:7999", KEY)


def test_the_key_comes_from_the_environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ServerBackend(base_url)` is enough where LUDUS_API_KEY is set; a wrong key is told as such."""
    monkeypatch.delenv("LUDUS_API_KEY", raising=False)
    with pytest.raises(UserError, match="LUDUS_API_KEY"):
        ServerBackend(served.url)
    monkeypatch.setenv("LUDUS_API_KEY", KEY)
    asyncio.run(ServerBackend(served.url).register(Model()))
    with pytest.raises(AgentError, match="it is not this server's"):
        asyncio.run(ServerBackend(served.url, "another-key-entirely").register(Model()))


def test_every_rollout_is_a_session_of_its_own(served: Served) -> None:
    """The key names the rollout that plays, the same from everywhere inside of it; outside there is one more."""
    names: list[str] = []

    async def main() -> None:
        backend = backend_of(served)
        await backend.register(Model())
        inference = await backend.prepare(Model())
        assert inference.base_url == f"{served.url}/m/mail/agent-001/v1"

        async def play(error: BaseException | None = None) -> None:
            first = inference.key()
            assert first == await asyncio.to_thread(inference.key)
            names.append(first)
            if error is not None:
                raise error

        names.append(inference.key())
        gathering = Gathering()
        await play_rollout(play(), Rollout(gathering, 0, 0))
        with contextlib.suppress(ValueError):
            await play_rollout(play(ValueError("lost")), Rollout(gathering, 0, 1))
        with contextlib.suppress(asyncio.CancelledError):
            await play_rollout(play(asyncio.CancelledError()), Rollout(Gathering(), 0, 0))

    asyncio.run(main())
    assert all(each.startswith(f"{KEY}#") for each in names)
    names = [each.removeprefix(f"{KEY}#") for each in names]
    client, colon, outside = names[0].partition(":")
    assert len(client) == 12 and colon and outside == "s000000-outside"
    rollouts = ["s000000-0001-g0000/m000", "s000000-0001-g0000/m001", "s000000-0002-g0000/m000"]
    assert names[1:] == [f"{client}:{each}" for each in rollouts]
    endings = [
        Reported("ok", "its rollout has ended"),
        Reported("failed", "ValueError: lost"),
        Reported("cancelled", "CancelledError: "),
    ]
    assert served.job_runner.ended == list(zip(names[1:], endings, strict=True))
