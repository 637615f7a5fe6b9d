"""Parameters that pin an answer to what a teacher has said."""

from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion

from ludus.compat.art.guided import get_guided_completion_params
from ludus.errors import UserError

TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}


def completion(**message: object) -> ChatCompletion:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return ChatCompletion.model_validate(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


def test_text_is_the_only_choice() -> None:
    """As ART has it: a list of one."""
    assert get_guided_completion_params(completion(content="A1")) == (["A1"], None, None)


def test_a_call_is_the_only_one() -> None:
    """Its arguments are constants of the tool's schema; the tool that was given is not changed."""
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": '{"to": "A1"}'}}
    _, choice, tools = get_guided_completion_params(completion(tool_calls=[call]), [TOOL])
    assert choice == {"type": "function", "function": {"name": "move"}}
    parameters = {"type": "object", "properties": {"to": {"const": "A1"}}, "required": ["to"]}
    assert tools == [{"type": "function", "function": {"name": "move", "parameters": parameters}}]
    assert TOOL["function"]["parameters"]["properties"] == {}  # type: ignore[index]
    with pytest.raises(UserError, match="calls 'move'; base_tools has none"):
        get_guided_completion_params(completion(tool_calls=[call]))
