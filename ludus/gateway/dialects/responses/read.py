"""A request for a response, read and checked.

Knows: the fields of the protocol, which items make one message.  Knows not: how an answer is written.

    input            reasoning  message  function_call  function_call │ function_call_output  function_call_output
    messages         ──────────────── one of the assistant ────────── │ tool                  tool
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.episodes.ids import turn_id_of
from ludus.episodes.names import DEFAULT_MODEL
from ludus.gateway.dialects.base import JsonObject, ParsedRequest, ReadMessages
from ludus.gateway.dialects.fields import (
    join,
    missing,
    names,
    numbered,
    read_array,
    read_choice,
    read_kind,
    read_object,
    read_objects,
    read_text,
    require_text,
    unsupported,
    wrong_type,
    wrong_value,
)
from ludus.gateway.dialects.history import read_content, read_entries
from ludus.gateway.dialects.openai import read_stream
from ludus.gateway.dialects.responses import fields
from ludus.gateway.dialects.sampling import EFFORTS, read_sampling
from ludus.gateway.dialects.tools import read_format, read_function, read_tool_use
from ludus.types import ChatRequest, Message, ResponseFormat, Sampling, ToolCall, ToolSpec

ROLES = ("user", "assistant", "system", "developer")
SUMMARIES = ("auto", "concise", "detailed")
REPEATED = names(
    "instructions max_output_tokens metadata previous_response_id prompt_cache_key reasoning safety_identifier text"
    " tool_choice tools top_logprobs user"
)
"""Fields that an answer repeats verbatim."""
WIRE_NAMES = {"reasoning_effort": "reasoning.effort"}
_NOTHING = Message("assistant")


def read_request(body: JsonObject, defaults: Sampling, read: ReadMessages) -> ParsedRequest:
    ignored = dict.fromkeys(fields.REQUEST.check(body))
    stream, _ = read_stream(body, ignored)
    logprobs = _include(body, ignored)
    if body.get("top_logprobs") and not logprobs:
        raise wrong_value(body["top_logprobs"], f"only together with {fields.INCLUDED!r} in 'include'", "top_logprobs")
    items, num_new = _items(body, read, ignored)
    instructions = read_text(body, "instructions")
    head = () if instructions is None else (Message("system", instructions),)
    previous = read_text(body, "previous_response_id")
    use = read_tool_use(
        body, lambda tool, at: _tool(tool, at, ignored), lambda entry, at: require_text(entry, "name", at=at)
    )
    read_object(body, "metadata")
    request = ChatRequest(
        messages=(*head, *merged(items)),
        tools=use.tools,
        sampling=read_sampling(body, defaults, limits=fields.LIMITS),
        tool_choice=use.tool_choice,
        forced_tool=use.forced_tool,
        parallel_tool_calls=use.parallel_tool_calls,
        response_format=_text_format(body, ignored),
        reasoning_effort=_effort(body),
        continues=None if previous is None else turn_id_of(previous),
        num_instructions=len(head),
        template_kwargs=read_object(body, "chat_template_kwargs"),
    )
    return ParsedRequest(
        request=request,
        model=read_text(body, "model") or DEFAULT_MODEL,
        stream=stream,
        logprobs=logprobs,
        ignored=tuple(ignored),
        wire_names=WIRE_NAMES,
        repeated={name: body[name] for name in REPEATED if body.get(name) is not None},
        num_new_messages=num_new,
    )


# Items


def _items(body: JsonObject, read: ReadMessages, ignored: dict[str, None]) -> tuple[list[Message], int]:
    """One message piece for each item, and how many items were new."""
    given = body.get("input")
    if given is None:
        if body.get("previous_response_id") is None and body.get("instructions") is None:
            raise missing("input")
        return [], 0
    if isinstance(given, str):
        return [Message("user", given)], 1
    if not isinstance(given, list):
        raise wrong_type(given, "a string or an array of items", "input")
    return read_entries("input", given, read, lambda item, at: (_item(item, at, ignored),))


def merged(pieces: Sequence[Message]) -> list[Message]:
    """Joins the pieces, one for each item, to messages: all items of one assistant turn are one message."""
    messages: list[Message] = []
    for piece in pieces:
        if messages and _continues(messages[-1], piece):
            messages[-1] = _joined(messages[-1], piece)
        else:
            messages.append(piece)
    # Encrypted thinking leaves an item without text.
    return [message for message in messages if message != _NOTHING]


def _continues(message: Message, piece: Message) -> bool:
    """Whether `piece` belongs to the same turn as `message`: thinking after text or a call begins a new turn."""
    if message.role != "assistant" or piece.role != "assistant":
        return False
    return piece.reasoning is None or (message.content is None and not message.tool_calls)


def _joined(message: Message, piece: Message) -> Message:
    return replace(
        message,
        content=_together(message.content, piece.content),
        reasoning=_together(message.reasoning, piece.reasoning),
        tool_calls=message.tool_calls + piece.tool_calls,
    )


def _together(one: str | None, other: str | None) -> str | None:
    return other if one is None else one if other is None else one + other


def _item(item: JsonObject, at: str, ignored: dict[str, None]) -> Message:
    if item.get("type") == "item_reference":
        raise unsupported(join(at, "type"), "Send the item itself, or 'previous_response_id'.")
    typed = item if item.get("type") is not None else {**item, "type": "message"}
    kind = read_kind(typed, fields.ITEMS, ignored, at=at)
    if kind == "message":
        return _message(item, at, ignored)
    if kind == "reasoning":
        return Message("assistant", reasoning=_thinking(item, at))
    call_id = require_text(item, "call_id", at=at)
    if kind == "function_call_output":
        output = _text(item, "output", at, ignored)
        return Message("tool", output, tool_call_id=call_id, name=read_text(item, "name", at=at))
    call = ToolCall(call_id, require_text(item, "name", at=at), require_text(item, "arguments", at=at))
    return Message("assistant", tool_calls=(call,))


def _message(item: JsonObject, at: str, ignored: dict[str, None]) -> Message:
    role = require_text(item, "role", at=at)
    if role not in ROLES:
        raise wrong_value(role, ", ".join(ROLES), join(at, "role"))
    return Message(role, _text(item, "content", at, ignored))  # type: ignore[arg-type]  # one of ROLES


def _text(item: JsonObject, name: str, at: str, ignored: dict[str, None]) -> str:
    if item.get(name) is None:
        raise missing(join(at, name))
    return read_content(item[name], join(at, name), fields.TEXTS, ignored)


def _thinking(item: JsonObject, at: str) -> str | None:
    """The text of a reasoning item, from its content or its summary. None: it has none."""
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = list(read_objects(item, name, at=at))
        for part_at, part in parts:
            if part.get("type") != kind:
                raise wrong_value(part.get("type"), repr(kind), join(part_at, "type"))
            fields.THOUGHTS[kind].check(part, at=part_at)
        if parts:
            return "".join([require_text(part, "text", at=part_at) for part_at, part in parts])
    return None


# Tools, thinking and the form of the answer


def _tool(tool: JsonObject, at: str, ignored: dict[str, None]) -> ToolSpec:
    kind = require_text(tool, "type", at=at)
    if kind != "function":
        raise unsupported(join(at, "type"), f"Only functions are served, not {kind!r}; offer a function of your own.")
    ignored.update(dict.fromkeys(fields.TOOL.check(tool, at=at)))
    return read_function(tool, at)


def _text_format(body: JsonObject, ignored: dict[str, None]) -> ResponseFormat | None:
    text = read_object(body, "text")
    ignored.update(dict.fromkeys(fields.TEXT.check(text, at="text")))
    return None if text.get("format") is None else read_format(read_object(text, "format", at="text"), "text.format")


def _effort(body: JsonObject) -> str | None:
    reasoning = read_object(body, "reasoning")
    fields.REASONING.check(reasoning, at="reasoning")
    for name in ("summary", "generate_summary"):
        read_choice(reasoning, name, SUMMARIES, at="reasoning")
    return read_choice(reasoning, "effort", EFFORTS, at="reasoning")


def _include(body: JsonObject, ignored: dict[str, None]) -> bool:
    """Whether the request asks for logprobs."""
    entries = read_array(body, "include")
    for at, entry in numbered("include", entries):
        if not isinstance(entry, str) or entry not in {fields.INCLUDED, *fields.INCLUDES}:
            raise wrong_value(entry, ", ".join(sorted({fields.INCLUDED, *fields.INCLUDES})), at)
    ignored.update(dict.fromkeys(f"include.{entry}" for entry in entries if entry != fields.INCLUDED))
    return fields.INCLUDED in entries
