"""Base, earlier steps and other models asked by name: each answers with its own weights, or is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from ludus.compat.art.gathering import gather_trajectories
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

MakeBackend = Callable[..., LocalBackend]
MakeModel = Callable[..., TrainableModel[Any]]
ASK: list[Any] = [{"role": "user", "content": "Guess."}]


async def ask(model: TrainableModel[Any], name: str, **options: Any) -> Any:
    """The choice of one greedy answer."""
    asked = {"model": name, "messages": ASK, "max_tokens": 6, "temperature": 0.0, "logprobs": True, **options}
    return (await model.openai_client().chat.completions.create(**asked)).choices[0]


def logprobs(choice: Any) -> list[tuple[str, float]]:
    return [(each.token, each.logprob) for each in choice.logprobs.content]


async def game(model: TrainableModel[Any], base: str) -> Trajectory:
    """The trained model, answered by its base."""
    played = Trajectory(messages_and_choices=list(ASK))
    played.messages_and_choices.append(await ask(model, model.name, temperature=1.0))
    other = await ask(model, base, temperature=1.0)
    assert other.model == f"{model.name}@0"
    played.messages_and_choices += [{"role": "user", "content": other.message.content or "…"}]
    played.messages_and_choices.append(await ask(model, "default", temperature=1.0))
    played.reward = float(len(played.choices()[0].message.content or ""))
    return played


@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8.0}, None])
def test_weights_by_name(make_backend: MakeBackend, make_model: MakeModel, lora: Any) -> None:
    """The base inside a rollout is the base and is trained nowhere; a step asked by name gives that step's logprobs."""

    async def main() -> None:
        model = make_model()
        async with make_backend(model={"dtype": "bfloat16", "lora": lora}) as backend:
            await model.register(backend)
            newest = [logprobs(await ask(model, model.name))]
            for step in (1, 2):
                played = await gather_trajectories((game(model, model.base_model) for _ in range(3)), pbar_desc=None)
                result = await model.train([TrajectoryGroup(played)], learning_rate=5e-2)
                assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0
                assert result.metrics["rollout/foreign_choices"] == 0 and result.step == step
                newest.append(logprobs(await ask(model, model.name)))
            assert newest[0] != newest[1] != newest[2]
            for step, expected in enumerate(newest):
                assert logprobs(await ask(model, model.get_inference_name(step))) == expected
            assert logprobs(await ask(model, model.base_model)) == newest[0]
            asked: Any = {"model": model.base_model, "messages": ASK, "max_tokens": 6, "stream": True}
            chunks = [chunk async for chunk in await model.openai_client().chat.completions.create(**asked)]
            assert {chunk.model for chunk in chunks} == {"agent@0"}
            assert [chunks[0].choices[0].model, chunks[-1].choices[0].model] == ["agent@0"] * 2
            listed = [each.id async for each in model.openai_client().models.list()]
            assert listed == ["agent", "default", model.base_model, "agent@1", "agent@2"]

    asyncio.run(main())


def test_what_cannot_be_served_is_refused(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Steps that are not there, other models' names; the answer names what there is."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            await make_model("other").register(backend)
            for name, why in (
                ("agent@1", "step 1 was not trained yet"),
                ("other", "another model is asked by its own client"),
                ("other@0", "another model is asked by its own client"),
                ("gpt-4o", "another model is asked by its own client"),
            ):
                with pytest.raises(openai.NotFoundError, match=f"{name}' cannot answer: .*{why}; there is agent, def"):
                    await ask(model, name)

    asyncio.run(main())


def test_choices_of_other_models_are_context(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Whoever of Ludus sampled them, by client or by step; a trajectory of nothing else is an error that names them."""

    async def main() -> None:
        mine, other = make_model(), make_model("other")
        async with make_backend() as backend:
            await mine.register(backend)
            await other.register(backend)

            async def talk() -> Trajectory:
                choices = [
                    await ask(mine, "agent", temperature=1.0),
                    await ask(other, "other"),
                    await ask(mine, "agent@0"),
                ]
                reward = float(len(choices[0].message.content or ""))
                return Trajectory(messages_and_choices=[*ASK, *choices], reward=reward)

            group = TrajectoryGroup(await gather_trajectories((talk() for _ in range(3)), pbar_desc=None))
            kept = TrajectoryGroup.model_validate_json(group.model_dump_json())
            result = await mine.train([kept])
            assert result.metrics["rollout/foreign_choices"] == 6 and result.metrics["ledger/sampled"] > 0
            for each in group:
                del each.messages_and_choices[1]
            with pytest.raises(UserError, match=r"none of the 2 choices .* as 'agent@0', 'other',"):
                await mine.train([group])

    asyncio.run(main())


def test_an_edited_choice_is_told(
    make_backend: MakeBackend, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sampled is trained, and a warning and a metric say that the choice is another."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)

            async def edited(number: int) -> Trajectory:
                choice = await ask(model, "agent", temperature=1.0)
                if number:
                    choice.message.content = "What I wanted."
                return Trajectory(messages_and_choices=[*ASK, choice], reward=number)

            played = await gather_trajectories((edited(number) for number in range(3)), pbar_desc=None)
            result = await model.train([TrajectoryGroup(played)])
            assert result.metrics["rollout/edited_choices"] == 2

    asyncio.run(main())
    assert "2 choices of step 1 were changed since they were sampled" in caplog.text
