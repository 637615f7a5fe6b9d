"""Trajectories and histories: what may stand in them, what they become as messages and as JSON."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import numpy
import pydantic
import pytest
from openai.types.chat.chat_completion import Choice as SdkChoice

from ludus.compat.art.choice import Choice, convert_litellm_choice_to_openai, strip_logprobs
from ludus.compat.art.trajectory import History, Trajectory
from ludus.errors import UserError

USER = {"role": "user", "content": "Add 1 and 2."}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def sdk_choice(content: str | None = "3", turn: str | None = "chatcmpl-1", **message: object) -> SdkChoice:
    """A choice as OpenAI's SDK reads it from an answer."""
    body = {"role": "assistant", "content": content, "refusal": None, **message}
    named = {} if turn is None else {"turn_id": turn}
    return SdkChoice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": body, "logprobs": {"content": [], "refusal": None}, **named}
    )


def test_messages_are_ready_for_the_next_request() -> None:
    """Choices become plain assistant messages, missing content becomes '', tool calls and reasoning stay."""
    called = sdk_choice(None, tool_calls=[CALL], reasoning_content="hm")
    trajectory = Trajectory(
        messages_and_choices=[USER, called, {"role": "tool", "tool_call_id": "call-1", "content": "3"}, sdk_choice()]
    )
    assert trajectory.messages() == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call-1", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]
    assert trajectory.turn_ids() == ["chatcmpl-1", "chatcmpl-1"]
    assert trajectory.choices()[0] is called


def test_an_assistants_mapping_is_context() -> None:
    """A mapping is never a choice, whoever is said to have spoken."""
    history = History(messages_and_choices=[USER, {"role": "assistant", "content": "3"}])
    assert history.choices() == [] and history.turn_ids() == []


def test_json_and_back() -> None:
    """Written as JSON and read again, a trajectory says the same: choices, histories, tools, numbers and texts."""
    trajectory = Trajectory(
        messages_and_choices=[USER, sdk_choice(None, tool_calls=[CALL])],
        additional_histories=[History(messages_and_choices=[USER, sdk_choice(turn="chatcmpl-2")], tools=[])],
        tools=[{"type": "function", "function": {"name": "add"}}],
        reward=0.5,
        metrics={"steps": 3, "won": True},
        metadata={"row": 7, "split": "train"},
        logs=["begun"],
        initial_policy_version=2,
    )
    read = Trajectory.model_validate(json.loads(trajectory.model_dump_json()))
    assert read.messages() == trajectory.messages()
    assert [each.turn_ids() for each in read.histories()] == [["chatcmpl-1"], ["chatcmpl-2"]]
    assert isinstance(read.choices()[0], Choice)
    assert read.choices()[0].message.tool_calls[0].function.name == "add"
    assert read.model_dump(mode="json") == trajectory.model_dump(mode="json")
    assert (read.metrics, read.metadata, read.logs) == (
        {"steps": 3, "won": True},
        {"row": 7, "split": "train"},
        ["begun"],
    )


@pytest.mark.parametrize("item", ["text", 3, {"content": "no role"}, object()])
def test_what_can_not_stand_in_a_trajectory(item: object) -> None:
    """It is named where it stands, whether it was passed or appended."""
    with pytest.raises(ValueError, match=r"messages_and_choices\[0\].*allowed: a mapping with a 'role', or a Choice"):
        Trajectory(messages_and_choices=[item])
    trajectory = Trajectory(messages_and_choices=[USER])
    trajectory.messages_and_choices.append(item)
    with pytest.raises(UserError, match=r"messages_and_choices\[1\]"):
        trajectory.messages()


def test_any_real_number_is_a_reward() -> None:
    """Booleans and numpy's scalars become floats; a text does not."""
    trajectory = Trajectory()
    for number in (True, numpy.float32(1.0), numpy.int64(1), 1):
        trajectory.reward = number  # type: ignore[assignment]
        assert trajectory.reward == 1.0 and type(trajectory.reward) is float
    with pytest.raises(ValueError, match="reward"):
        trajectory.reward = "good"  # type: ignore[assignment]


def test_durations_are_metrics() -> None:
    """`finish` measures the whole, `track_duration` adds up its blocks, also those that fail."""

    async def main() -> Trajectory:
        trajectory = Trajectory()
        for fails in (False, True):
            try:
                async with trajectory.track_duration("tool"):
                    if fails:
                        raise RuntimeError
            except RuntimeError:
                trajectory.log("failed")
        return trajectory.finish()

    trajectory = asyncio.run(main())
    assert set(trajectory.metrics) == {"tool_duration", "duration"} and trajectory.logs == ["failed"]
    assert 0 < trajectory.metrics["tool_duration"] <= trajectory.metrics["duration"]


@pytest.mark.parametrize("zone", [None, UTC])
def test_a_start_may_be_given(zone: tzinfo | None) -> None:
    """It is without a zone, as users of ART subtract it from their own clock's time; one with a zone counts too."""
    assert datetime.now() - Trajectory().start_time < timedelta(minutes=1)
    begun = datetime.now(zone) - timedelta(hours=1)
    assert 3600 <= Trajectory(start_time=begun).finish().metrics["duration"] < 3660


def test_logprobs_are_left_out_of_copies() -> None:
    """At any depth, of objects and their JSON; what was given keeps them."""
    trajectory = Trajectory(messages_and_choices=[USER, sdk_choice()], reward=1.0)
    (choice,) = strip_logprobs([trajectory])[0].choices()
    assert (choice.logprobs, choice.message.content, choice.turn_id) == (None, "3", "chatcmpl-1")
    assert trajectory.choices()[0].logprobs is not None
    given = {"choices": ({"index": 0, "logprobs": [1]},), "logprobs": 2, "of": 3}
    assert strip_logprobs(given) == {"choices": ({"index": 0},), "of": 3}


def test_what_is_logged_says_what_was_trainable() -> None:
    """A sampled choice is marked, a choice of somebody else's model is not."""
    trajectory = Trajectory(messages_and_choices=[USER, sdk_choice(), sdk_choice(turn=None)])
    logged = trajectory.for_logging()
    assert [each["trainable"] for each in logged["messages"]] == [False, True, False]
    json.dumps(logged)


def test_a_choice_that_litellm_read() -> None:
    """It keeps a field that it does not know in a mapping of its own; the choice is of the same turn all the same."""

    class Message(pydantic.BaseModel):
        role: str = "assistant"
        content: str = "3"
        provider_specific_fields: dict[str, Any] = {"refusal": None}

    class Choices(pydantic.BaseModel):
        finish_reason: str = "stop"
        index: int = 0
        message: Message = Message()
        provider_specific_fields: dict[str, Any] = {"turn_id": "chatcmpl-1"}

    trajectory = Trajectory(messages_and_choices=[USER, Choices(), convert_litellm_choice_to_openai(Choices())])
    assert trajectory.turn_ids() == ["chatcmpl-1", "chatcmpl-1"]
    assert trajectory.messages()[1:] == [{"role": "assistant", "content": "3"}] * 2
    read = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert read.turn_ids() == trajectory.turn_ids()
