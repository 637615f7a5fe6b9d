"""What ART's own examples write: each form of it acts, or says by name that it does nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.compat import overrides
from ludus.compat.art import backends
from ludus.compat.art.backends import TrainConfig, as_group
from ludus.compat.art.configs import model_config
from ludus.compat.art.gather_context import (
    GatherContext,
    get_gather_context,
    set_gather_context,
    wrap_group_awaitable,
)
from ludus.compat.art.gathering import gather_trajectories, gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.trainable import Model, TrainableModel
from ludus.compat.art.trajectory import History, Trajectory
from ludus.compat.config import Config
from ludus.compat.members import Told
from ludus.errors import ConfigError, UserError

MakeBackend = Callable[..., LocalBackend]
MakeModel = Callable[..., TrainableModel[Any]]


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables are as before when the test has ended."""
    for variable in (overrides.MODELS, overrides.SETTINGS):
        monkeypatch.setenv(variable, "")


async def played(*rewards: float) -> Any:
    found = tuple(Trajectory(reward=reward) for reward in rewards)
    return found if len(found) > 1 else found[0]


async def failed() -> Trajectory:
    raise ValueError("no")


async def ask(model: Any, reward: float) -> Trajectory:
    messages = [{"role": "user", "content": "?"}]
    answer = await model.openai_client().chat.completions.create(model=model.name, messages=messages, max_tokens=4)
    return Trajectory(messages_and_choices=[*messages, answer.choices[0]], reward=reward)


def test_rollouts_of_several_players() -> None:
    """What they return is a list among the others, and stands in a group one after the other."""

    async def main() -> None:
        pairs = await gather_trajectories([played(1, 2), played(3)], pbar_desc=None)
        assert isinstance(pairs[0], list) and [each.reward for each in pairs[0]] == [1, 2]
        assert isinstance(pairs[1], Trajectory) and pairs[1].reward == 3
        group = await TrajectoryGroup([played(1, 2), played(3)])
        assert [each.reward for each in group] == [1, 2, 3]
        with pytest.raises(UserError, match="or a tuple of them"):
            await TrajectoryGroup([asyncio.sleep(0, (1, 2))])  # type: ignore[list-item]

    asyncio.run(main())


def test_a_gathering_of_ones_own() -> None:
    """As ART's self-play writes it: the bar is the user's, failures beyond the tolerated ones rise."""

    class Bar:
        total, num = 7, 0

        def update(self, n: float = 1) -> None:
            self.num += int(n)

        def refresh(self) -> None: ...

        def set_postfix(self, _: object) -> None: ...

    async def main() -> None:
        context, bar = GatherContext(pbar=None, max_exceptions=1), Bar()
        with set_gather_context(context):
            future = asyncio.gather(*[wrap_group_awaitable(each) for each in (played(1, 2), failed(), played(3))])
            context.pbar = bar
            pair, nothing, one = await future
            assert get_gather_context() is context
        assert ([each.reward for each in pair], nothing, one.reward) == ([1, 2], None, 3)
        assert (bar.total, bar.num, context.pbar) == (7, 4, bar)
        with pytest.raises(ValueError, match="no"), set_gather_context(GatherContext()):
            await wrap_group_awaitable(failed())
        with pytest.raises(UserError, match="no gathering of your own"):
            get_gather_context()

    asyncio.run(main())


def test_a_run_plays_as_much_as_it_is_told() -> None:
    """`--set gconfig.n_samples` of a group, `train_dataset.batch_size` groups; the rest is closed unplayed."""
    overrides.put(settings=["gconfig.n_samples=2", "train_dataset.batch_size=1"])

    async def main() -> None:
        given = [TrajectoryGroup(played(each) for each in range(4)) for _ in range(3)]
        (group,) = await gather_trajectory_groups(given, pbar_desc=None)
        assert [each.reward for each in group] == [0, 1]
        assert len(await gather_trajectories((played(each) for each in range(5)), pbar_desc=None)) == 2
        assert len(TrajectoryGroup(group.trajectories * 2)) == 4

    asyncio.run(main())


def test_options_of_training_that_change_nothing_are_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once. `ppo` is what `loss_fn` says today, `normalize_advantages` what `scale_rewards` does; others are refused by
    name, all in one message, with what to use instead, unless they say what is so by default there."""
    monkeypatch.setattr(backends, "_TOLD", Told("art", "local.backend.LocalBackend.train"))
    for _ in range(2):
        config = TrainConfig(learning_rate=1e-3, logprob_calculation_chunk_size=8, plot_tensors=True, ppo=True)
    assert (config.learning_rate, config.loss_fn) == (1e-3, "ppo")
    assert len(caplog.messages) == 1 and "logprob_calculation_chunk_size (`trainer.row_tokens`" in caplog.text
    assert "plot_tensors (the run store" in caplog.text
    assert not TrainConfig(normalize_advantages=False).scale_rewards
    assert TrainConfig(normalize_advantages=True, scale_rewards=False).scale_rewards is False
    with pytest.raises(ConfigError, match=r"kimi_k2_tau=0\.1: there is no counterpart") as raised:
        TrainConfig(kimi_k2_tau=0.1, truncated_importance_sampling=2.0)
    assert "`algorithm.correction.cap`" in str(raised.value)
    TrainConfig(kimi_k2_tau=None, advantage_balance=0.0, importance_sampling_level="token", mask_prob_ratio=False)


def test_lists_are_groups() -> None:
    """With exceptions in them."""
    group = as_group([Trajectory(reward=1), ValueError("no"), Trajectory(reward=2)])
    assert ([each.reward for each in group], group.exceptions[0].type) == ([1, 2], "ValueError")
    assert as_group(group) is group


def test_trajectories_say_what_they_leave_out(caplog: pytest.LogCaptureFixture) -> None:
    """By name; a subclass has its own fields."""

    class Mine(Trajectory):
        final_answer: str = ""

    assert Mine(reward=1, final_answer="a", note="b").final_answer == "a"
    assert "Mine has no note" in caplog.text
    assert History(messages_and_choices=[], reward=1).messages() == [] and "History has no reward" in caplog.text


def test_a_model_may_say_that_it_is_trainable() -> None:
    """As ART writes one; a model that is not does not become one."""
    assert TrainableModel(name="m", project="p", base_model="b", trainable=True).trainable
    with pytest.raises(ValueError, match="trainable"):
        Model(name="m", project="p", trainable=True)


def test_internal_configurations_as_plain_mappings() -> None:
    """Of ART's keys, of Ludus's, and of both, also where they are set later."""
    model = TrainableModel(name="m", project="p", base_model="b")
    model._internal_config = {"init_args": {"max_seq_length": 64}, "engine": {"kv_bytes": 5}}
    assert model.internal_config == {"model": {"context_length": 64}, "engine": {"kv_bytes": 5}}


def test_an_address_stands_for_a_model_of_an_api() -> None:
    """Above the one that the script gives; registering a model that is not trained does nothing."""
    overrides.put(models=["gpt-4o=http://127.0.0.1:9/v1"])
    model: Model[Any] = Model(name="gpt-4o", project="p", inference_base_url="https://api.openai.com/v1")
    model.inference_api_key = "x"
    assert str(model.openai_client().base_url) == "http://127.0.0.1:9/v1/"


def test_keys_that_a_script_cannot_be_told_are_refused() -> None:
    """By name, with what can be; the others stand above the script's own."""
    own = {"model": {"dtype": "float32"}}
    overrides.put(settings=["model.dtype=bfloat16", "total_train_steps=2"], models=["big=small"])
    config = model_config(Config(), base_model="big", own=own, folder=("a", "b"))
    assert (config.model.path, config.model.dtype) == ("small", "bfloat16")
    overrides.put(settings=["total_train_epochs=2"])
    with pytest.raises(ConfigError, match=r"--set total_train_epochs cannot act: your own loop .*total_train_steps"):
        model_config(Config(), base_model="big", own=own, folder=("a", "b"))


def test_what_is_of_buckets_is_said(make_backend: MakeBackend, caplog: pytest.LogCaptureFixture) -> None:
    """Pulling and pushing do nothing; forking from one and deploying are errors."""
    model = TrainableModel(name="m", project="p", base_model="b")

    async def main() -> None:
        backend = make_backend()
        await backend._experimental_pull_from_s3(model, s3_bucket="x", verbose=True)
        await backend._experimental_push_to_s3(model)
        with pytest.raises(ConfigError, match="from_s3_bucket='x' cannot act"):
            await backend._experimental_fork_checkpoint(model, "other", from_s3_bucket="x")
        with pytest.raises(ConfigError, match="_experimental_deploy cannot act"):
            await backend._experimental_deploy(deploy_to="together", model=model)

    asyncio.run(main())
    assert caplog.text.count("does nothing: a model stays in the folder") == 2


def test_training_as_older_examples_call_it(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """`_config` beside `config`, `verbose`, a list as a group, None; the script ends behind the steps it is told."""
    overrides.put(settings=["total_train_steps=2"])
    steps: list[int] = []

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            while True:
                group = [await ask(model, reward) for reward in (0.0, 1.0)]
                steps.append(await model.get_step())
                options: Any = {"verbose": True, "_config": {"logprob_calculation_chunk_size": 8, "epsilon_high": 2.0}}
                await model.train([None, group], config=TrainConfig(learning_rate=1e-3), **options)  # type: ignore[list-item]

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 0 and steps == [0, 1]


def test_a_backend_that_nobody_closes_ends_with_its_loop(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Without a traceback, and what was trained is saved, also where a block that cannot wait has ended."""
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, art\n"
        f"model = art.TrainableModel(name='m', project='p', base_model={str(tiny_model_folder)!r})\n"
        "async def main():\n"
        "    with art.LocalBackend() as backend:\n"
        "        await model.register(backend)\n"
        "    ask = model.openai_client().chat.completions.create\n"
        "    message = {'role': 'user', 'content': '?'}\n"
        "    done = [await ask(model='m', messages=[message], max_tokens=4) for _ in range(2)]\n"
        "    group = [art.Trajectory(messages_and_choices=[message, each.choices[0]], reward=i)\n"
        "             for i, each in enumerate(done)]\n"
        "    print((await model.train([group])).step)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "ludus", "run", "--set", "model.dtype=float32", str(script)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["1"] and done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "runs" / "p" / "models" / "m" / "checkpoints" / "step-000001").is_dir()
