"""Messages as verl's loops write them, read into the chat vocabulary."""

from __future__ import annotations

import json

from ludus.compat.verl.messages import read_messages


def test_calls_and_answers_without_ids_belong_together_in_order() -> None:
    """verl's tool agent writes ids only where the model does, and arguments as an object."""
    calls = [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Seattle"}}},
        {"type": "function", "id": "own", "function": {"name": "search", "arguments": "{}"}},
    ]
    _, said, first, second = read_messages(
        [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "26.1"},
            {"role": "tool", "content": "nothing"},
        ]
    )
    assert [call.id for call in said.tool_calls] == [first.tool_call_id, second.tool_call_id]
    assert said.tool_calls[1].id == "own"
    assert json.loads(said.tool_calls[0].arguments) == {"city": "Seattle"}
