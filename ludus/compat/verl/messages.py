"""Messages and tools as rows and loops write them, in plain dictionaries, read into the chat vocabulary.

Knows: OpenAI's chat messages, columns of tables.  Knows not: templates, models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ludus.errors import AgentError, UserError
from ludus.gateway.dialects.base import ReadMessages
from ludus.gateway.dialects.chat.dialect import CHAT
from ludus.runs.interactions import message_json
from ludus.text.template import ChatTemplate
from ludus.types import Message, Sampling, ToolSpec


def read_messages(values: Iterable[Mapping[str, Any] | Message]) -> tuple[Message, ...]:
    """The messages; those that are read already stay as they are. Raises AgentError that names the field which cannot
    be."""
    entries = list(values)
    written = _with_ids([plain(entry) for entry in entries if not isinstance(entry, Message)])
    if entries and not written:
        return tuple(entry for entry in entries if isinstance(entry, Message))
    read = iter(CHAT.parse({"messages": written}, Sampling(), ReadMessages()).request.messages)
    return tuple(entry if isinstance(entry, Message) else next(read) for entry in entries)


def _with_ids(messages: Iterable[Any]) -> list[Any]:
    """The messages with ids of calls where verl's loops write none: answers of tools follow their calls in order."""
    found: list[Any] = []
    waiting: list[str] = []
    for idx, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found.append(message)  # the protocol's reader says what is wrong
            continue
        entry = dict(message)
        if isinstance(entry.get("tool_calls"), list):
            calls = [_called(call, f"call{idx}_{at}") for at, call in enumerate(entry["tool_calls"])]
            entry["tool_calls"] = calls
            if calls and entry.get("content") == "":
                entry["content"] = None  # it says nothing: some templates show calls alone so
            waiting = [str(call["id"]) for call in calls if isinstance(call, Mapping)]
        elif entry.get("role") == "tool":
            own = entry.setdefault("tool_call_id", waiting[0] if waiting else f"call{idx}")
            waiting = [each for each in waiting if each != own]
        found.append(entry)
    return found


def _called(call: Any, call_id: str) -> Any:
    """A call with an id, its arguments as a text."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
        function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {"type": "function", "id": call_id, **call, "function": function}


def read_tools(values: Iterable[Any] | None) -> tuple[ToolSpec, ...]:
    """Tools as OpenAI's protocol writes them, or as schemas with `model_dump`."""
    if not values:
        return ()
    tools = [value if isinstance(value, Mapping) else value.model_dump(exclude_none=True) for value in values]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [plain(tool) for tool in tools]}
    return CHAT.parse(body, Sampling(), ReadMessages()).request.tools


def message_value(message: Message) -> dict[str, Any]:
    """A message as OpenAI's protocol writes it."""
    return {**message_json(message), "content": message.content or ""}


def undecoded_answers(template: ChatTemplate, texts: Sequence[str]) -> list[Message]:
    """The answers to what began as calls and is none: a tool's, where the template shows one without a call, else the
    user's."""
    answers = [Message("tool", text, tool_call_id=f"undecoded{idx}") for idx, text in enumerate(texts)]
    try:
        template.render((Message("user", "?"), Message("assistant", "?"), *answers))
    except AgentError:
        return [Message("user", "\n".join(texts))]
    return answers


def plain(value: Any) -> Any:
    """The value in dictionaries and lists; a table fills in None wherever another of its rows has a key, and arrays
    where there were lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if not isinstance(value, str | bytes | int | float | bool) and callable(getattr(value, "tolist", None)):
        return plain(value.tolist())
    return value


def prompt_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that a row begins with: its `raw_prompt`, `prompt` or `messages`, or a question as a text."""
    for name in ("raw_prompt", "prompt", "messages"):
        value = plain(row.get(name))
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if isinstance(value, list) and value:
            return value
    raise UserError(
        f"the row has no prompt: an agent loop reads the column 'prompt', a list of messages or a text; the row has "
        f"{', '.join(map(str, row)) or 'no column'}"
    )
