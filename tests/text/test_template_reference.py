"""Every template renders to the same text as with the library that templates are written for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ludus.errors import AgentError
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall, ToolSpec

NAMES = ["chatml", "chatml-tools", "gemma", "keepthinking", "lastonly", "mistral", "qwen2", "qwen3", "r1"]
TOOL = ToolSpec("add", "Adds <two>.", {"type": "object", "properties": {"a": {"type": "number"}}})
USER = Message("user", " Hi\n")
THINKING = Message("assistant", "Yo", reasoning="hm")
CALLING = Message("assistant", "", tool_calls=(ToolCall("c", "add", '{"a": "é<"}'),))
RESULT = Message("tool", "2", tool_call_id="c")
CONVERSATIONS = [
    [USER],
    [Message("system", "S"), USER],
    [USER, THINKING, USER],
    [USER, CALLING, RESULT],
    [USER, CALLING, RESULT, THINKING, USER],
]


def as_dict(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        value["tool_call_id"] = message.tool_call_id
    return value


def reference(template: ChatTemplate, messages: list[Message], **values: Any) -> str | None:
    """What the library renders; None where it fails."""
    try:
        rendered, _ = render_jinja_template([list(map(as_dict, messages))], chat_template=template.source, **values)
    except Exception:  # whatever a template fails with
        return None
    return str(rendered[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_same_text(load_template: Callable[..., ChatTemplate], name: str, generation_prompt: bool) -> None:
    """With and without tools and generation prompt, both render the same text or both refuse."""
    template = load_template(name)
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    for messages in CONVERSATIONS:
        for tools in [(), (TOOL,)] if template.renders_tools else [()]:
            shown: str | None
            try:
                shown = template.render(messages, tools, generation_prompt=generation_prompt)
            except AgentError:
                shown = None
            assert shown == reference(
                template,
                messages,
                tools=[{"type": "function", "function": function}] if tools else None,
                add_generation_prompt=generation_prompt,
                **template.special_tokens,
            )
