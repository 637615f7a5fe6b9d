"""Rollouts whose agent is a graph of LangGraph: what is said becomes their trajectory, with the newest weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.langgraph import init_chat_model, wrap_rollout
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

MakeBackend = Callable[..., LocalBackend]
MakeModel = Callable[..., TrainableModel[Any]]


def graph_of(ask: Callable[[Any], Any]) -> Any:
    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def awaited(state: MessagesState) -> Any:
    return {"messages": [await init_chat_model(max_tokens=6).ainvoke(state["messages"])]}


def blocking(state: MessagesState) -> Any:
    return {"messages": [init_chat_model("agent", max_tokens=6).invoke(state["messages"])]}


async def streamed(state: MessagesState) -> Any:
    chunks = [chunk async for chunk in init_chat_model(max_tokens=6).astream(state["messages"])]
    return {"messages": [sum(chunks[1:], chunks[0])]}


def streamed_blocking(state: MessagesState) -> Any:
    chunks = list(init_chat_model(max_tokens=6).stream(state["messages"]))
    return {"messages": [sum(chunks[1:], chunks[0])]}


async def rollout(model: TrainableModel[Any], ask: Callable[[Any], Any], number: int) -> Trajectory:
    """Two turns in one conversation, and one of a sub-agent."""
    graph = graph_of(ask)
    state = await graph.ainvoke({"messages": [{"role": "user", "content": f"Guess {number}."}]})
    await graph.ainvoke({"messages": [*state["messages"], {"role": "user", "content": "Again."}]})
    await graph.ainvoke({"messages": [{"role": "user", "content": "Aside."}]})
    return Trajectory(reward=float(number))


@pytest.mark.parametrize("ask", [awaited, blocking, streamed, streamed_blocking])
def test_a_graph_leaves_a_trajectory(make_backend: MakeBackend, make_model: MakeModel, ask: Any) -> None:
    """Every answer stands in it once, with its turn; the aside is an additional history; all of it is trained, and
    after a step the same chat models ask the new weights."""

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            for step in (1, 2):
                group = await TrajectoryGroup(wrap_rollout(model, rollout)(model, ask, number) for number in range(3))
                for trajectory in group:
                    assert [len(history.choices()) for history in trajectory.histories()] == [2, 1]
                    assert len(trajectory.turn_ids()) == 2
                    assert trajectory.messages()[2]["content"] == "Again."
                result = await model.train([group], learning_rate=1e-2)
                assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0
                assert {each.initial_policy_version for each in group} == {step - 1}

    asyncio.run(main())


def test_a_chat_model_from_before_a_step(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """One that was made once and kept asks the newest weights too."""
    kept: list[Any] = []

    async def keeping(model: TrainableModel[Any], number: int) -> Trajectory:
        if not kept:
            kept.append(init_chat_model(max_tokens=4))
        await kept[0].ainvoke("Guess.")
        return Trajectory(reward=float(number))

    async def main() -> None:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            for step in (1, 2):
                group = await TrajectoryGroup(wrap_rollout(model)(keeping)(model, number) for number in range(3))
                await model.train([group], learning_rate=1e-2)
                assert {each.initial_policy_version for each in group} == {step - 1}

    asyncio.run(main())


def test_a_trajectory_that_tells_itself_stays(make_backend: MakeBackend, make_model: MakeModel) -> None:
    """Answers that a rollout wrote down are not written twice."""

    async def telling(model: TrainableModel[Any]) -> Trajectory:
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "Guess."}], max_tokens=4
        )
        return Trajectory(messages_and_choices=[{"role": "user", "content": "Guess."}, answer.choices[0]])

    async def main() -> Trajectory:
        model = make_model()
        async with make_backend() as backend:
            await model.register(backend)
            return await wrap_rollout(model, telling)(model)

    assert len(asyncio.run(main()).messages_and_choices) == 2


def test_what_cannot_be() -> None:
    """Outside of a rollout there is no model, and another one's name is an error."""
    model = TrainableModel(name="agent", project="p", base_model="smollm2-135m")

    async def other() -> Any:
        return init_chat_model("gpt-4o")

    async def nothing() -> Any:
        return None

    with pytest.raises(UserError, match="outside of a rollout"):
        init_chat_model()
    with pytest.raises(UserError, match="'gpt-4o'"):
        asyncio.run(wrap_rollout(model, other)())
    with pytest.raises(UserError, match="returned a NoneType"):
        asyncio.run(wrap_rollout(model, nothing)())


def test_a_rollout_that_was_never_answered_keeps_its_messages() -> None:
    """Its first call failed, and it returned what it had."""

    async def failed() -> Trajectory:
        return Trajectory(messages_and_choices=[{"role": "user", "content": "Guess."}], metadata={"failed": True})

    model: TrainableModel[Any] = TrainableModel(name="m", project="p", base_model="b")
    trajectory = asyncio.run(wrap_rollout(model, failed)())
    assert [each["content"] for each in trajectory.messages()] == ["Guess."] and trajectory.additional_histories == []
