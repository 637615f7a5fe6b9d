"""Models in this process: what rollouts sample is what is trained, exactly, and what is saved goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from ludus.compat.art.backends import TrainProgress, TrainSFTConfig
from ludus.compat.art.batching import trajectory_group_batches
from ludus.compat.art.gathering import gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.schedule import create_lr_schedule
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import History, Trajectory
from ludus.episodes.ledger import Ledger
from ludus.errors import BackendError, ConfigError, UserError
from ludus.runs.store import RunStore

MakeBackend = Callable[..., LocalBackend]
MakeModel = Callable[..., TrainableModel[Any]]


def client_of(model: TrainableModel[Any]) -> openai.AsyncOpenAI:
    """As ART's notebooks make one inside of a rollout."""
    return openai.AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)


async def rollout(
    model: TrainableModel[Any], question: str, *, turns: int = 2, client: openai.AsyncOpenAI | None = None
) -> Trajectory:
    """Talks for some turns; the reward is what is easily learned: few letters."""
    client = client or model.openai_client()
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    for turn in range(turns):
        if turn:
            trajectory.messages_and_choices.append({"role": "user", "content": "Again."})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages()
        )
        trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = -float(sum(len(each.message.content or "") for each in trajectory.choices()))
    return trajectory.finish()


async def gather(model: TrainableModel[Any], *, groups: int = 2, members: int = 3, **options: Any) -> Any:
    return await gather_trajectory_groups(
        (TrajectoryGroup(rollout(model, f"Guess {g}.", **options) for _ in range(members)) for g in range(groups)),
        pbar_desc=None,
    )


def test_what_was_sampled_is_trained(make_backend: MakeBackend, make_model: MakeModel, tmp_path: Path) -> None:
    """Two steps: every sampled token of the trajectories is trained, rows are in the run store, new weights answer."""
    told: list[TrainProgress] = []

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            for step in (1, 2):
                groups = await gather(model)
                result = await model.train(groups, learning_rate=1e-2, on_progress=told.append)
                assert result.step == step == await model.get_step()
                assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0
                assert {each.initial_policy_version for group in groups for each in group} == {step - 1}
                assert json.loads((Path(str(result.checkpoint_path)) / "adapter_config.json").read_text())["r"] == 4
            hosted = (await backend.hosted(model)).model
            ledger = hosted.progress.ledger
            assert ledger.unbalanced == 0 and ledger.trained == ledger.sampled

    asyncio.run(main())
    assert [each.stage for each in told] == ["batch", "train", "publish", "checkpoint"] * 2
    with RunStore.open(tmp_path / "projects" / "p" / "models" / "agent") as store:
        episodes = list(store.episodes(step=2))
        assert [each.id for each in episodes][:2] == ["step000002-g0000-m000", "step000002-g0000-m001"]
        assert all(len(each.session.turns) == 2 for each in episodes)
        assert [turn.prefix is None for turn in episodes[0].session.turns] == [True, False]
        assert list((store.folder / "journal").glob("*")) == []


def test_a_step_whose_publish_failed_counts(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Its weights have moved: the next step is another one, and every token is accounted for once."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            hosted = (await backend.hosted(model)).model
            groups = await gather(model)
            with pytest.MonkeyPatch.context() as patch:

                async def fail(*_: Any) -> None:
                    raise BackendError("the engine is away")

                patch.setattr(type(hosted.run.engine), "publish", fail)
                with pytest.raises(BackendError, match="away"):
                    await model.train(groups)
            assert hosted.step == 1 and hosted.progress.ledger.trained > 0
            result = await model.train(await gather(model))
            ledger = hosted.progress.ledger
            assert result.step == 2 and ledger.unbalanced == 0 and ledger.trained == ledger.sampled

    asyncio.run(main())


def test_a_divergence_may_be_asked_for_after_a_resume(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """By a script that was ended and runs again, or only in a later step: from the weights of step 0."""

    async def main() -> None:
        seen = []
        for _ in range(2):
            model = make_model()
            async with make_backend() as backend:
                await model.register(backend)
                seen.append((await model.train(await gather(model), kl_penalty_coef=0.1)).metrics["train/kl_reference"])
        assert seen[0] == pytest.approx(0.0, abs=1e-6) and seen[1] > 1e-6

    asyncio.run(main())


def test_a_model_goes_on_where_it_was(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Opened again, it answers with the trained weights; two steps in one go or in two are the same weights."""

    async def steps(name: str, *, reopened: bool) -> list[float]:
        for part in ((1,), (1,)) if reopened else ((1, 1),):
            model = make_model(name)
            async with make_backend() as backend:
                await model.register(backend)
                for _ in part:
                    await model.train(await gather(model))
                hosted = (await backend.hosted(model)).model
                scores = await hosted.run.engine.score(tuple(range(3, 20)))
                assert await model.get_step() == hosted.step
        return list(scores)

    async def main() -> None:
        assert await steps("once", reopened=False) == await steps("again", reopened=True)

    asyncio.run(main())


@pytest.mark.parametrize("make_client", [TrainableModel.openai_client, client_of])
def test_what_a_trajectory_does_not_name(
    make_client: Callable[[Any], openai.AsyncOpenAI], make_backend: MakeBackend, make_model: MakeModel, tmp_path: Path
) -> None:
    """An answer that is thrown away is left out, a failed rollout's tokens are masked as failed, what nobody trains is
    unused when the backend closes: everything sampled has one account, whoever made the client."""

    async def hasty(model: TrainableModel[Any], number: int) -> Trajectory:
        async with make_client(model) as client:
            await rollout(model, "thrown away", turns=1, client=client)
            if number == 2:
                raise RuntimeError("lost")
            found = await rollout(model, f"kept {number}", turns=1, client=client)
        found.reward = number
        return found

    async def main() -> tuple[dict[str, float], Ledger]:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            groups = await gather_trajectory_groups(
                [TrajectoryGroup(hasty(model, number) for number in range(3))], max_exceptions=1, pbar_desc=None
            )
            assert [each.message for each in groups[0].exceptions] == ["lost"]
            await gather(model, groups=1, members=1)
            result = await model.train(groups)
            await rollout(model, "asked outside of any rollout")
            hosted = (await backend.hosted(model)).model
        return result.metrics, hosted.progress.ledger

    metrics, ledger = asyncio.run(main())
    assert metrics["ledger/masked_left_out"] > 0 and metrics["ledger/masked_failed"] > 0
    assert metrics["ledger/trained"] > 0 and set(ledger.masked) == {"left_out", "failed", "unused"}
    assert ledger.unbalanced == 0 and ledger.sampled > metrics["ledger/sampled"]
    with RunStore.open(tmp_path / "projects" / "p" / "models" / "agent") as store:
        outcomes = [(each.outcome.kind, each.outcome.reason) for each in store.episodes()]
        assert outcomes.count(("failed", "RuntimeError: lost")) == 1
        assert outcomes.count(("ok", "no training step took it")) == 2
        assert sum(each.session.num_sampled_tokens for each in store.episodes()) == ledger.sampled


def test_choices_are_matched_by_their_turns(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """From outside of rollouts, in several histories, through JSON, and a second time; what cannot be is named."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            first, second = await rollout(model, "a"), await rollout(model, "b", turns=1)
            other = await rollout(model, "c", turns=1)
            first.additional_histories.append(History(messages_and_choices=other.messages_and_choices))
            first.reward, second.reward = 1.0, 0.0
            group = TrajectoryGroup.model_validate(json.loads(TrajectoryGroup([first, second]).model_dump_json()))
            result = await model.train([group])
            hosted = (await backend.hosted(model)).model
            assert [len(each.session.turns) for each in hosted.run.store.episodes(step=1)] == [3, 1]
            assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"]
            again = await model.train([group])
            assert again.metrics["ledger/trained"] == result.metrics["ledger/trained"]
            assert again.metrics["staleness/max_versions"] == 1
            stale = await model.train([group], max_steps_off_policy=1)
            assert stale.metrics["ledger/masked_stale"] == result.metrics["ledger/trained"]

            with pytest.raises(UserError, match="trajectory 0 of group 0 and trajectory 1 of group 0 both name"):
                await model.train([TrajectoryGroup([first, first])])
            made_up = Trajectory(messages_and_choices=[{"message": {"content": "x"}, "finish_reason": "stop"}])
            with pytest.raises(UserError, match="none of the 1 choices"):
                await model.train([TrajectoryGroup([made_up])])
            made_up.messages_and_choices[0].turn_id = "chatcmpl-nobody"
            with pytest.raises(UserError, match="'chatcmpl-nobody', and no record here holds it"):
                await model.train([TrajectoryGroup([made_up])])
            second.reward = float("nan")
            with pytest.raises(UserError, match=r"trajectory 1 of group 0: the reward .* is nan"):
                await model.train([TrajectoryGroup([first, second])])
            empty = Trajectory(messages_and_choices=[{"role": "user", "content": "never asked"}])
            skipped = await model.train([TrajectoryGroup([empty])])
            assert (skipped.step, skipped.metrics["rollout/empty_trajectories"]) == (4, 1.0)

    asyncio.run(main())


def test_groups_that_agree_are_a_step_without_a_change(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Equal rewards teach nothing: the step goes on, its checkpoint is there, the weights are what they were."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            hosted = (await backend.hosted(model)).model
            before = await hosted.run.engine.score(tuple(range(3, 20)))
            (group,) = await gather(model, groups=1)
            for each in group:
                each.reward = 1.0
            result = await model.train([group])
            assert (result.step, result.metrics["train/skipped_steps"]) == (1, 1.0) and result.checkpoint_path
            assert result.metrics["ledger/masked_zero_advantage"] == result.metrics["ledger/sampled"]
            assert await hosted.run.engine.score(tuple(range(3, 20))) == before

    asyncio.run(main())


def test_what_a_rollout_leaves_running_asks_nobody(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """A call after the end is refused, and everything that was sampled is trained all the same."""

    async def main() -> None:
        model = make_model()
        left: list[asyncio.Task[Any]] = []

        async def late() -> None:
            await asyncio.sleep(0.5)
            await rollout(model, "too late")

        async def play(number: int) -> Trajectory:
            left.append(asyncio.create_task(late()))
            found = await rollout(model, f"{number}", turns=1)
            found.reward = number
            return found

        async with make_backend() as backend:
            await model.register(backend)
            group = await TrajectoryGroup(play(number) for number in range(2))
            with pytest.raises(openai.AuthenticationError, match="the session has ended"):
                await left[0]
            await asyncio.gather(*left, return_exceptions=True)
            result = await model.train([group])
            assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0
            hosted = (await backend.hosted(model)).model
        assert hosted.progress.ledger.masked == {}

    asyncio.run(main())


def test_rollouts_overlap_with_training(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Later batches play while one is trained on: their tokens are older by as many steps as batches overlap at most,
    and all of them are trained."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            groups = (TrajectoryGroup(rollout(model, f"Guess {g}.") for _ in range(2)) for g in range(5))
            ages = []
            async for batch in trajectory_group_batches(groups, batch_size=1, max_concurrent_batches=3, pbar_desc=None):
                metrics = (await model.train(batch)).metrics
                ages.append(metrics["staleness/max_versions"])
            assert len(ages) == 5 and max(ages) <= 2
            hosted = (await backend.hosted(model)).model
        assert hosted.progress.ledger.sampled == hosted.progress.ledger.trained + hosted.progress.ledger.num_masked
        assert set(hosted.progress.ledger.masked) <= {"zero_advantage"}

    asyncio.run(main())


def test_a_cell_that_is_run_again_takes_the_model_over(
    make_backend: MakeBackend, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """A second backend of the same loop goes on with the model where the first one was, and is the last to write it."""

    async def main() -> None:
        backends = []
        for number in range(3):
            model = make_model()
            backends.append(make_backend())
            await model.register(backends[-1])
            assert await model.get_step() == number
            assert (await model.train(await gather(model, groups=1))).step == number + 1
        for backend in backends:
            await backend.close()

    asyncio.run(main())
    assert caplog.text.count("was open in another LocalBackend of this process") == 2


def test_turns_of_a_process_before_are_found(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Trajectories that were kept as JSON are trained after a restart; the record comes from the run store."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            kept = TrajectoryGroup(await asyncio.gather(*(rollout(model, f"q{number}") for number in range(2))))
            kept.trajectories[0].reward = 5.0
            text = kept.model_dump_json()
        later = make_model()
        async with make_backend() as backend:
            await later.register(backend)
            result = await later.train([TrajectoryGroup.model_validate_json(text)])
            assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0

    asyncio.run(main())


def test_a_step_that_is_begun_again_has_its_episodes_once(
    make_backend: MakeBackend, make_model: MakeModel, tmp_path: Path
) -> None:
    """They are in the record before it, and so they are when its process was killed in the middle of it."""

    async def fail(*_: Any, **__: Any) -> None:
        raise BackendError("the machine is away")

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            groups = await gather(model)
            kept = [group.model_dump_json() for group in groups]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ludus.api.hosted.train_step", fail)
                with pytest.raises(BackendError, match="away"):
                    await model.train(groups)
        later = make_model()
        async with make_backend() as backend:
            await later.register(backend)
            result = await later.train([TrajectoryGroup.model_validate_json(text) for text in kept])
            assert result.step == 1 and result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0

    asyncio.run(main())
    with RunStore.open(tmp_path / "projects" / "p" / "models" / "agent") as store:
        episodes = [episode.id for episode in store.episodes(step=1)]
        assert len(episodes) == 6 == len(set(episodes))


def test_checkpoints_stay_until_they_are_deleted(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """All steps are there; deleting keeps the newest and the best; a fork begins with the step it was asked for."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            folder = (await backend.hosted(model)).model.run.store.checkpoints
            scores = []
            for step in (1, 2, 3):
                await model.train(await gather(model, groups=1))
                await model.log(metrics={"reward": [0.2, 0.9, 0.5][step - 1]}, split="val")
                scores.append(await (await backend.hosted(model)).model.run.engine.score(tuple(range(3, 20))))
            assert sorted(each.name for each in folder.iterdir()) == [f"step-{step:06d}" for step in (1, 2, 3)]
            assert [(folder / f"step-{step:06d}" / "trainer").exists() for step in (1, 2, 3)] == [False, False, True]

            pulled = await backend._experimental_pull_model_checkpoint(model, step=2, verbose=True)
            newest = await backend._experimental_pull_model_checkpoint(
                model, step="latest", local_path=f"{folder}-copy"
            )
            assert Path(pulled) == folder / "step-000002" / "model" and newest == f"{folder}-copy"
            copied = folder.with_name(f"{folder.name}-copy")
            here = {each.name: each.read_bytes() for each in (folder / "step-000003" / "model").iterdir()}
            assert {each.name: each.read_bytes() for each in copied.iterdir()} == here
            with pytest.raises(UserError, match="has no saved weights of step 9; it has: 1, 2, 3"):
                await backend._experimental_pull_model_checkpoint(model, step=9)
            with pytest.raises(ConfigError, match="s3_bucket='b' cannot act"):
                await backend._experimental_pull_model_checkpoint(model, s3_bucket="b")
            other = make_model("other")
            assert await backend.fork(other, "agent", not_after_step=2) == 2
            await other.register(backend)
            forked = await (await backend.hosted(other)).model.run.engine.score(tuple(range(3, 20)))
            assert await other.get_step() == 2 and forked == scores[1]
            assert (await other.train(await gather(other, groups=1))).step == 3
            with pytest.raises(UserError, match="'other' has begun already"):
                await backend.fork(other, "agent")
            with pytest.raises(UserError, match="has no checkpoint up to step 0; it has: 1, 2, 3"):
                await backend.fork(make_model("new"), "agent", not_after_step=0)

            await model.delete_checkpoints()
            assert sorted(each.name for each in folder.iterdir()) == ["step-000002", "step-000003"]
            await model.delete_checkpoints("val/unknown")
            assert sorted(each.name for each in folder.iterdir()) == ["step-000003"]
            with pytest.raises(UserError, match="has the base model"):
                await make_backend().register(make_model(base_model="smollm2-135m"))

    asyncio.run(main())


def test_supervised_training_on_trajectories(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Every assistant message is learned, with a learning rate for each batch; the result answers and is a step."""
    lesson = Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "Guess."},
            {"role": "assistant", "content": "The answer is 42"},
        ]
    )
    told: list[TrainProgress] = []

    async def main() -> None:
        model = make_model(_internal_config={"model": {"lora": None}})
        async with make_backend() as backend:
            await model.register(backend)
            rates = create_lr_schedule(20, 2e-2, "cosine", warmup_steps=2)
            config = TrainSFTConfig(learning_rate=rates, batch_size=1, epochs=20)
            result = await model.train_sft([lesson], config, on_progress=told.append)
            assert (result.step, result.metrics["train/batches"], await model.get_step()) == (1, 20.0, 1)
            assert result.metrics["train/lr"] == rates[-1]
            client = model.openai_client()
            answer = await client.chat.completions.create(
                model=model.get_inference_name(), messages=lesson.messages()[:1], temperature=0, max_tokens=32
            )
            assert answer.choices[0].message.content == "The answer is 42"
            with pytest.raises(UserError, match="has 3 values, and the trajectories make 1 batches"):
                await model.train_sft([lesson], TrainSFTConfig(learning_rate=(1e-3,) * 3))
            assert await model.get_step() == 1

    asyncio.run(main())
    assert [each.num_done for each in told if each.stage == "train"] == list(range(1, 21))


def test_keys_that_do_not_act_are_named_when_the_backend_is_made(
    make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """The user's own loop says when it is enough."""
    make_backend(total_train_steps=3)
    assert "do not act: total_train_steps (your own loop plays, evaluates and ends)" in caplog.text


def test_a_key_of_servers_cannot_act_here(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Every call is a step of its own, so a key that makes two calls one step is refused before anything is opened."""
    with pytest.raises(ConfigError, match="idempotency_key cannot act"):
        asyncio.run(make_backend().train(make_model(), [], idempotency_key="batch-3"))


def test_a_process_of_its_own_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    """ART's default, given by itself: said once, and nothing else."""
    LocalBackend(in_process=True)
    assert not caplog.text
    LocalBackend(in_process=False)
    assert "ignores in_process (the backend runs in this process, on threads of its own)" in caplog.text
