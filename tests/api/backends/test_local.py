"""Models in this process: what rollouts sample is what is trained, exactly, and what is saved goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.agents.trajectory import Trajectory, TrajectoryGroup, gather_trajectory_groups
from ludus.api.backends import LocalBackend, TrainProgress
from ludus.api.model import TrainableModel
from ludus.trace.store import RunStore

MakeBackend = Callable[..., LocalBackend]
MakeModel = Callable[..., TrainableModel[Any]]


async def rollout(model: TrainableModel[Any], question: str, *, turns: int = 2) -> Trajectory:
    """Talks for some turns; the reward is what is easily learned: few letters."""
    client = model.openai_client()
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
            hosted = await backend.hosted(model)
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


def test_a_model_goes_on_where_it_was(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Opened again, it answers with the trained weights; two steps in one go or in two are the same weights."""

    async def steps(name: str, *, reopened: bool) -> list[float]:
        for part in ((1,), (1,)) if reopened else ((1, 1),):
            model = make_model(name)
            async with make_backend() as backend:
                await model.register(backend)
                for _ in part:
                    await model.train(await gather(model))
                hosted = await backend.hosted(model)
                scores = await hosted.engine.score(tuple(range(3, 20)))
                assert await model.get_step() == hosted.step
        return list(scores)

    async def main() -> None:
        assert await steps("once", reopened=False) == await steps("again", reopened=True)

    asyncio.run(main())
