"""Models as users' loops see them: clients, logs, state, and what happens without a backend."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy
import pydantic
import pytest

from ludus.compat.art import trainable
from ludus.compat.art.capture import auto_trajectory, capture_auto_trajectory
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.trainable import Model, TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.members import Told
from ludus.errors import UserError

ASK: Any = [{"role": "user", "content": "Guess."}]


def test_an_unregistered_model_gets_a_local_backend_and_says_so(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client made before anything else answers; the log names the backend; training goes to the same weights."""
    monkeypatch.chdir(tmp_path)
    small = {"model": {"dtype": "float32"}, "engine": {"kv_bytes": 2**22}, "gconfig": {"max_new_tokens": 8}}
    model = TrainableModel(name="m", project="p", base_model=str(tiny_model_folder), _internal_config=small)
    client = model.openai_client()
    assert (model.get_inference_name(), model.inference_base_url) == ("m", None)

    async def ask() -> Trajectory:
        answer = await client.chat.completions.create(model="m", messages=ASK)
        return Trajectory(messages_and_choices=[*ASK, answer.choices[0]], reward=len(answer.id) % 3)

    async def main() -> None:
        with caplog.at_level(logging.WARNING):
            group = await TrajectoryGroup(ask() for _ in range(2))
        assert [record.message for record in caplog.records if "was not registered" in record.message] == [
            "m was not registered: a LocalBackend in 'runs' trains it in this process; call `await "
            "model.register(backend)` first for another one"
        ]
        group.trajectories[0].reward = 9.0
        result = await model.train([group], learning_rate=1e-3)
        assert (result.step, await model.get_step()) == (1, 1)
        assert str(model.inference_base_url).startswith("http://127.0.0.1:")
        with pytest.raises(UserError, match="is registered with LocalBackend"):
            await model.register(LocalBackend())
        await model.backend().close()

    asyncio.run(main())
    rows = [json.loads(line) for line in (tmp_path / "runs/p/models/m/history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] and {"train/reward", "train/loss"} <= set(rows[0])
    assert (tmp_path / "runs/p/models/m/trajectories/train/0001.jsonl").exists()


def test_agents_that_write_no_trajectory_are_captured(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Streamed or not, what was asked and answered becomes a trajectory whose turns can be trained."""
    small = {"model": {"dtype": "float32"}, "engine": {"kv_bytes": 2**22}, "gconfig": {"max_new_tokens": 8}}
    model = TrainableModel(
        name="m", project="p", base_model=str(tiny_model_folder), base_path=str(tmp_path), _internal_config=small
    )

    async def agent() -> None:
        client = model.openai_client()
        first = await client.chat.completions.create(model="m", messages=ASK)
        text = first.choices[0].message.content
        more = [*ASK, {"role": "assistant", "content": text}, {"role": "user", "content": "Again."}]
        async for _ in await client.chat.completions.create(model="m", messages=more, stream=True):
            pass
        trajectory = auto_trajectory(required=True)
        trajectory.reward = 1.0

    async def main() -> None:
        async with LocalBackend(path=tmp_path) as backend:
            await model.register(backend)
            trajectory = await capture_auto_trajectory(agent())
            assert len(trajectory.turn_ids()) == 2 and trajectory.additional_histories == []
            assert [message["role"] for message in trajectory.messages()] == ["user", "assistant"] * 2
            hosted = await backend.hosted(model)
            (part,) = hosted.records.parts(trajectory.turn_ids())
            assert [turn.reply.content for turn in part.record.turns] == [
                message["content"] for message in trajectory.messages()[1::2]
            ]
            async with model.openai_client().chat.completions.stream(model="m", messages=ASK) as stream:
                async for _ in stream:
                    pass
                whole = stream.current_completion_snapshot
            assert Trajectory(messages_and_choices=[*ASK, whole.choices[0]]).turn_ids() == [whole.id]

    asyncio.run(main())


def test_what_is_logged(tmp_path: Path) -> None:
    """Means below the split, exceptions counted, groups' own numbers apart; the trajectories are there as JSON."""
    model: Model[None] = Model(name="gpt-4.1", project="p", base_path=str(tmp_path))
    groups = [
        TrajectoryGroup([Trajectory(reward=1, metrics={"won": True}), Trajectory(reward=0)], metrics={"tries": 3}),
        TrajectoryGroup([Trajectory(reward=2, metrics={"won": False})], exceptions=[ValueError("x")]),
    ]

    async def main() -> None:
        row = await model.log(groups, metrics={"cost": 0.5, "judge/tokens": 7}, step=4)
        assert row == {
            "val/exception_rate": 0.25, "val/reward": 1.0, "val/reward_std_dev": 0.5, "val/won": 0.5,
            "val/group_tries": 3.0, "val/cost": 0.5, "judge/tokens": 7.0,
        }  # fmt: skip
        assert (await model.log([Trajectory(reward=3), KeyError("y")], split="test"))["test/exception_rate"] == 0.5
        with pytest.raises(UserError, match="but not both"):
            await model.log([groups[0], Trajectory()])  # type: ignore[list-item]

    asyncio.run(main())
    read = model.log_files.trajectories("val", 4)
    assert [len(group) for group in read] == [2, 1] and read[1].exceptions[0].message == "x"
    assert [row["step"] for row in model.log_files.history()] == [4, 0]
    assert model.log_files.best_step("val/reward") == 4 and model.log_files.best_step("val/nothing") is None
    for step, reward in ((6, 1.5), (7, 0.0), (7, 2.0)):  # several logs of a step count as their mean
        asyncio.run(model.log([Trajectory(reward=reward)], step=step))
    assert model.log_files.best_step("val/reward") == 6
    with pytest.raises(UserError, match="nothing was logged"):
        model.log_files.trajectories("val", 5)


def test_numbers_of_numpy_are_logged(tmp_path: Path) -> None:
    """As rollouts put them into the mappings of a trajectory or a group, after it was made."""
    model: Model[None] = Model(name="m", project="p", base_path=str(tmp_path))
    trajectory = Trajectory(reward=1)
    trajectory.metrics |= {"won": numpy.bool_(True), "share": numpy.float32(0.25)}
    trajectory.metadata["tries"] = numpy.int64(3)
    group = TrajectoryGroup([trajectory])
    group.metrics["spread"] = numpy.float32(0.5)
    row = asyncio.run(model.log([group], step=1))
    assert (row["val/won"], row["val/share"], row["val/group_spread"]) == (1.0, 0.25, 0.5)
    ((read,),) = model.log_files.trajectories("val", 1)
    assert (read.metrics, read.metadata) == ({"won": True, "share": 0.25}, {"tries": 3})


def test_a_state_of_ones_own(tmp_path: Path) -> None:
    """Nothing at first; merging keeps other keys, overwriting does not."""
    model: Model[None] = Model(name="m", project="p", base_path=str(tmp_path))
    assert model.read_state() is None
    model.merge_state({"row": 3, "seen": [1]})
    assert model.merge_state({"row": 4}) == {"row": 4, "seen": [1]}
    model.merge_state({"best": {"val": 1, "train": 2}})
    assert model.merge_state({"best": {"val": 3}})["best"] == {"val": 3, "train": 2}
    model.overwrite_state({"epoch": 1})
    assert model.read_state() == {"epoch": 1}
    model.write_state({"epoch": 2})
    assert model.read_state() == {"epoch": 2}


def test_arguments_without_a_meaning_here_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named once, with what says it here, also by position; what was given can be read."""
    monkeypatch.setattr(trainable, "_TOLD", Told("art", "model.Model"))
    base = {"project": "p", "base_model": "b", "base_path": str(tmp_path)}
    for name in ("one", "two"):
        model: TrainableModel[Any] = TrainableModel(name=name, entity="us", report_metrics=["wandb"], id="i", **base)
    assert (model.entity, model.report_metrics, model.id) == ("us", ["wandb"], "i")
    named = [line for line in caplog.messages if "model.Model ignores" in line]
    assert len(named) == 1 and "`trackers.to`" in named[0] and "WANDB_ENTITY" in named[0]
    config = {"key": object()}
    assert TrainableModel(name="m", config=config, **base).safe_model_dump()["config"] is None
    LocalBackend(path=tmp_path, gpu_cost_per_hour_usd=2.0)
    assert caplog.messages[-1].startswith("art.local.backend.LocalBackend ignores gpu_cost_per_hour_usd")
    model.update_wandb_config({"x": 1})
    assert caplog.messages[-1].startswith("art.model.Model.update_wandb_config does nothing")
    with pytest.raises(AttributeError, match=r"metrics_builder is not here: `model\.log\(metrics=…\)`"):
        model.metrics_builder("train")

    async def main() -> None:
        with pytest.raises(UserError, match="there are no trajectories"):
            await model.train_sft([], None, {}, True)
        with pytest.raises(UserError, match="is registered with"):
            await model.register(LocalBackend(), {"server_args": {}})

    model.backend()
    asyncio.run(main())
    assert "register ignores _openai_client_config" in caplog.text and "(it has no options); verbose (" in caplog.text


def test_a_model_that_is_not_trained() -> None:
    """It is reached by its own endpoint and name; it has no steps, and unknown fields are refused."""
    model: Model[None] = Model(
        name="big", project="p", inference_base_url="http://localhost:9/v1", inference_api_key="k",
        inference_model_name="big-2",
    )  # fmt: skip
    client = model.openai_client(max_retries=1)
    assert (str(client.base_url), client.api_key, client.max_retries) == ("http://localhost:9/v1/", "k", 1)
    assert model.get_inference_name() == "big-2" and not model.trainable
    assert model.litellm_completion_params()["model"] == "big-2"
    with pytest.raises(UserError, match="no step 3"):
        model.get_inference_name(3)
    with pytest.raises(pydantic.ValidationError, match="report_metric"):
        Model(name="m", project="p", report_metric=["wandb"])  # type: ignore[call-arg]
    with pytest.raises(UserError, match="has no backend"):
        model.backend()
    asyncio.run(model.register(backend := LocalBackend()))
    assert model.backend() is backend
    trained: TrainableModel[None] = TrainableModel(name="m", project="p", base_model="b")
    assert trained.litellm_completion_params(3)["model"] == "hosted_vllm/m@3"
    assert trained.get_inference_name(3) == "m@3"
