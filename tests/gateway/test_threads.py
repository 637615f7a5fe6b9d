"""Conversations that the session holds for a client of Anthropic's protocol, which sends only what is new."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from ludus.types import Message

ADD: Any = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
ASK: Any = {"model": "default", "max_tokens": 50, "messages": [{"role": "user", "content": "Guess."}]}
CREATE: Any = {**ASK, "system": "Play.", "tools": [ADD], "thread": {"type": "create"}}


def post(url: str, body: Any) -> httpx.Response:
    return httpx.post(f"{url}/messages", json=body, timeout=30)


def going_on(message_id: str, **fields: Any) -> Any:
    return {**ASK, "thread": {"type": "continue", "previous_message_id": message_id}, **fields}


def test_thread_goes_on_with_its_instructions_and_tools(open_sessions: Any) -> None:
    """The second turn extends the first one's tokens, though only the new message was sent."""
    url, session = open_sessions(["7", "8"]).open()
    first = post(url, CREATE).json()
    assert post(url, going_on(first["id"])).status_code == 200
    one, other = session.snapshot().turns
    assert other.messages == (
        Message("system", "Play."),
        Message("user", "Guess."),
        one.reply,
        Message("user", "Guess."),
    )
    assert (other.tools, other.prefix, other.fork) == (one.tools, one.id, None)


def test_unknown_thread_is_told_in_the_sdks_words(open_sessions: Any) -> None:
    """The tool runner then sends the whole history again."""
    url, _ = open_sessions([]).open()
    response = post(url, going_on("msg_0"))
    error = response.json()["error"]
    assert (response.status_code, error["details"]) == (404, {"error_code": "thread_not_found"})
    assert error["param"] == "thread.previous_message_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [ADD]}, "tools"),
        ({"system": "Play on."}, "system"),
        ({"tool_choice": {"type": "tool", "name": "ad"}}, "tool_choice"),
        ({"thread": {"type": "fork"}}, "thread.type"),
        ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
    ],
)
def test_what_a_thread_keeps_is_refused(open_sessions: Any, fields: Any, param: str) -> None:
    """A thread's instructions and tools cannot be sent again, and a forced call must be one of its tools."""
    url, _ = open_sessions(["7"]).open()
    response = post(url, going_on(post(url, CREATE).json()["id"], **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_sdk_replays_a_thread_that_was_lost(open_sessions: Any) -> None:
    """Where the gateway knows nothing of the thread, as in another session, the SDK sends the whole history."""
    session_manager = open_sessions(["7", "8"])
    (one, _), (other, session) = session_manager.open("one"), session_manager.open("other")
    with anthropic.Anthropic(base_url=one, api_key="DUMMY") as client:
        thread = client.beta.messages.thread(model="default", max_tokens=50)
        thread.send({"role": "user", "content": "Guess."})
        client.base_url = other
        assert thread.send({"role": "user", "content": "Again."}).content[0].text == "8"
    [turn] = session.snapshot().turns
    assert [message.content for message in turn.messages] == ["Guess.", "7", "Again."]
