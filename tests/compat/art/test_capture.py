"""Trajectories of agents that write none: captured from requests and answers, or yielded on the side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ludus.compat.art.capture import (
    auto_trajectory,
    capture_auto_trajectory,
    capture_yielded_trajectory,
    yield_trajectory,
)
from ludus.compat.art.exchanges import exchange_listeners
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str | None, **message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **message}


def exchange(messages: list[dict[str, Any]], *answers: dict[str, Any], tools: Any = None) -> None:
    """One request and its answer, as a model's client would tell it."""
    choices = [
        {"index": i, "finish_reason": "stop", "message": answer, "turn_id": f"t-{answer['content']}"}
        for i, answer in enumerate(answers)
    ]
    for listener in exchange_listeners():
        listener({"messages": messages, **({"tools": tools} if tools else {})}, {"choices": choices})


def capture(*exchanges: tuple[Any, ...], **options: Any) -> Trajectory:
    async def agent() -> str:
        for messages, *answers in exchanges:
            exchange(messages, *answers, **options)
        trajectory = auto_trajectory(required=True)
        trajectory.reward = 0.5
        return "what the agent returns"

    return asyncio.run(capture_auto_trajectory(agent()))


def contents(history: Any) -> list[str]:
    return [message["content"] for message in history.messages()]


def test_a_conversation_is_one_history() -> None:
    """Each request goes on with the one before; the choices are there once, the reward is what the agent set."""
    call = said(None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}])
    asked = [SYSTEM, user("a")]
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    trajectory = capture((asked, call), ([*asked, call, result], said("done")), tools=TOOLS)
    assert contents(trajectory) == ["Be brief.", "a", "", "3", "done"]
    assert (len(trajectory.choices()), trajectory.additional_histories) == (2, [])
    assert (trajectory.reward, trajectory.tools) == (0.5, TOOLS)


def test_another_conversation_is_another_history() -> None:
    """A sub-agent and a request sent again begin histories; later requests find theirs, the longest that fits."""
    one, two = [user("a")], [user("b")]
    trajectory = capture(
        (one, said("1")),
        (two, said("2")),
        (one, said("1 again")),
        ([*two, said("2"), user("c")], said("3")),
        ([*one, said("1"), user("d")], said("4")),
    )
    assert [contents(each) for each in trajectory.histories()] == [
        ["a", "1", "d", "4"],
        ["b", "2", "c", "3"],
        ["a", "1 again"],
    ]


def test_other_tools_are_another_conversation() -> None:
    """Tools belong to a history; the same messages with others begin a new one."""

    async def agent() -> None:
        exchange([user("a")], said("1"))
        exchange([user("a"), said("1"), user("b")], said("2"), tools=TOOLS)

    trajectory = asyncio.run(capture_auto_trajectory(agent()))
    assert [each.tools for each in trajectory.histories()] == [None, TOOLS]


def test_several_answers_are_branches() -> None:
    """Every choice of a request is captured, and the one that the agent goes on with goes on."""
    asked = [user("a")]
    trajectory = capture((asked, said("1"), said("2")), ([*asked, said("2"), user("b")], said("3")))
    assert [contents(each) for each in trajectory.histories()] == [["a", "1"], ["a", "2", "b", "3"]]


def test_where_nothing_is_captured() -> None:
    """There is no trajectory; requiring one is an error that says how to get it."""
    assert auto_trajectory() is None
    with pytest.raises(UserError, match="capture_auto_trajectory"):
        auto_trajectory(required=True)
    assert exchange_listeners() == ()


def test_captures_at_once_are_apart() -> None:
    """Two agents that run together are captured each by itself."""

    async def agent(name: str) -> None:
        for number in range(3):
            exchange([user(name)], said(f"{name}{number}"))
            await asyncio.sleep(0)

    async def main() -> None:
        found = await asyncio.gather(capture_auto_trajectory(agent("x")), capture_auto_trajectory(agent("y")))
        assert [contents(each)[0] for each in found] == ["x", "y"]
        assert [len(each.histories()) for each in found] == [3, 3]

    asyncio.run(main())


def test_a_yielded_trajectory() -> None:
    """It passes functions that return something else; none, two, or nobody to take it are errors."""

    async def inner(num_yielded: int) -> str:
        for _ in range(num_yielded):
            yield_trajectory(Trajectory(reward=0.25))
        return "text"

    async def main() -> None:
        assert (await capture_yielded_trajectory(inner(1))).reward == 0.25
        with pytest.raises(UserError, match="no trajectory was yielded"):
            await capture_yielded_trajectory(inner(0))
        with pytest.raises(UserError, match="yielded before"):
            await capture_yielded_trajectory(inner(2))
        with pytest.raises(UserError, match="nobody waits"):
            await inner(1)

    asyncio.run(main())
