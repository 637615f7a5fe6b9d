"""LangChain's messages as Ludus' own, and a recorded turn as LangChain's message.

Knows: the fields of both.  Knows not: graphs, models, requests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InputTokenDetails,
    SystemMessage,
    ToolMessage,
    UsageMetadata,
)

from ludus.errors import UserError
from ludus.types import ChatRole, Message, ToolCall, Turn

REASONING = "reasoning_content"
"""Where LangChain's integrations keep a model's thinking, among `additional_kwargs`."""
UNDECODED = "undecoded_tool_calls"
"""Key in `response_metadata`: raw texts that began as a tool call and could not be parsed; also part of the content."""
_ROLES: dict[str, ChatRole] = {name: name for name in ("system", "developer", "user", "assistant")}


def to_messages(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """The conversation as Ludus's messages. Raises UserError for content that is not text, or for an unknown role."""
    return tuple(map(_to_message, messages))


def _to_message(message: BaseMessage) -> Message:
    text = _text(message)
    match message:
        case AIMessage():
            calls = tuple(
                ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
                for call in message.tool_calls
            )
            reasoning = message.additional_kwargs.get(REASONING)
            return Message("assistant", text or (None if calls else ""), reasoning, calls, name=message.name)
        case ToolMessage():
            return Message("tool", text, tool_call_id=message.tool_call_id, name=message.name)
        case HumanMessage():
            return Message("user", text, name=message.name)
        case SystemMessage():
            # LangChain has no message for developers; its integrations say it this way.
            role = message.additional_kwargs.get("__openai_role__", "system")
            return Message("developer" if role == "developer" else "system", text, name=message.name)
        case ChatMessage() if message.role in _ROLES:
            return Message(_ROLES[message.role], text, name=message.name)
    raise UserError(
        f"a {type(message).__name__} ({message!r:.200}) has no place in a chat; allowed: SystemMessage, HumanMessage, "
        f"AIMessage, ToolMessage, and ChatMessage with the role {', '.join(_ROLES)}"
    )


def _text(message: BaseMessage) -> str:
    """The message's text; parts are joined without a separator, as the gateway does."""
    content = message.content
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") != "tool_call":  # calls stand in `tool_calls` too
            raise UserError(f"a {type(message).__name__} holds {part!r:.200}; the model reads text alone")
    return "".join(texts)


def to_ai_message(turn: Turn, *, num_prompt_tokens: int, model_name: str) -> AIMessage:
    """The model's answer in a turn; its id is the turn's, by which it can be rewarded."""
    return AIMessage(
        content=turn.reply.content or "",
        id=turn.id,
        tool_calls=[
            {"name": call.name, "args": json.loads(call.arguments), "id": call.id, "type": "tool_call"}
            for call in turn.reply.tool_calls
        ],
        additional_kwargs={} if turn.reply.reasoning is None else {REASONING: turn.reply.reasoning},
        response_metadata=response_metadata(turn, model_name),
        usage_metadata=usage_of(turn, num_prompt_tokens),
    )


def response_metadata(turn: Turn, model_name: str) -> dict[str, Any]:
    undecoded = {UNDECODED: list(turn.undecoded)} if turn.undecoded else {}
    return {"model_name": model_name, "finish_reason": turn.finish_reason, **undecoded}


def usage_of(turn: Turn, num_prompt_tokens: int) -> UsageMetadata:
    num_sampled = len(turn.sampled.token_ids)
    return UsageMetadata(
        input_tokens=num_prompt_tokens,
        output_tokens=num_sampled,
        total_tokens=num_prompt_tokens + num_sampled,
        input_token_details=InputTokenDetails(cache_read=turn.sampled.num_cached_tokens),
    )
