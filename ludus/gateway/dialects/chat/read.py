"""A chat completion's request, read and checked.

Knows: the fields of the protocol.  Knows not: how an answer is written.
"""

from __future__ import annotations

from ludus.episodes.names import DEFAULT_MODEL
from ludus.gateway.dialects.base import JsonObject, ParsedRequest, ReadMessages
from ludus.gateway.dialects.chat import fields
from ludus.gateway.dialects.fields import (
    join,
    missing,
    read_boolean,
    read_choice,
    read_integer,
    read_kind,
    read_object,
    read_objects,
    read_text,
    require_text,
    unsupported,
    wrong_value,
)
from ludus.gateway.dialects.history import read_content, read_messages
from ludus.gateway.dialects.openai import read_stream
from ludus.gateway.dialects.sampling import EFFORTS, read_sampling
from ludus.gateway.dialects.tools import read_format, read_function, read_tool_use
from ludus.types import ChatRequest, Message, ResponseFormat, Sampling, ToolCall, ToolSpec

MAX_CHOICES = 128  # as OpenAI's own


def read_request(body: JsonObject, defaults: Sampling, read: ReadMessages) -> ParsedRequest:
    ignored = dict.fromkeys(fields.REQUEST.check(body))
    logprobs = read_boolean(body, "logprobs", False)
    if body.get("top_logprobs") is not None and not logprobs:
        raise wrong_value(body["top_logprobs"], "only together with 'logprobs': true", "top_logprobs")
    stream, include_usage = read_stream(body, ignored)
    messages, num_new = read_messages(body, read, lambda entry, at: (_message(entry, at, ignored),))
    use = read_tool_use(body, _tool, _named, nested="allowed_tools")
    request = ChatRequest(
        messages=tuple(messages),
        tools=use.tools,
        sampling=read_sampling(body, defaults, limits=fields.LIMITS),
        n=read_integer(body, "n", 1, low=1, high=MAX_CHOICES),
        tool_choice=use.tool_choice,
        forced_tool=use.forced_tool,
        parallel_tool_calls=use.parallel_tool_calls,
        response_format=_response_format(body),
        reasoning_effort=read_choice(body, "reasoning_effort", EFFORTS),
        template_kwargs=read_object(body, "chat_template_kwargs"),
    )
    return ParsedRequest(
        request=request,
        model=read_text(body, "model") or DEFAULT_MODEL,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        token_ids=read_boolean(body, "return_token_ids", False),
        tokens_as_ids=read_boolean(body, "return_tokens_as_token_ids", False),
        ignored=tuple(ignored),
        num_new_messages=num_new,
    )


# Messages


def _message(entry: JsonObject, at: str, ignored: dict[str, None]) -> Message:
    role = read_kind(entry, fields.MESSAGES, ignored, at=at, name="role")
    content, param = entry.get("content"), join(at, "content")
    if content is None and role != "assistant":
        raise missing(param)
    reasoning = read_text(entry, "reasoning_content", at=at)
    return Message(
        role=role,  # type: ignore[arg-type]  # a key of MESSAGES
        content=None if content is None else read_content(content, param, fields.PARTS, ignored),
        reasoning=read_text(entry, "reasoning", at=at) if reasoning is None else reasoning,
        tool_calls=tuple(
            [_tool_call(call, call_at, ignored) for call_at, call in read_objects(entry, "tool_calls", at=at)]
        ),
        tool_call_id=require_text(entry, "tool_call_id", at=at) if role == "tool" else None,
        name=read_text(entry, "name", at=at),
    )


def _tool_call(call: JsonObject, at: str, ignored: dict[str, None]) -> ToolCall:
    fields.TOOL_CALL.check(call, at=at)
    _check_function_type(call, at)
    function = read_object(call, "function", at=at)
    inside = join(at, "function")
    ignored.update(dict.fromkeys(fields.CALLED.check(function, at=inside)))
    return ToolCall(
        id=require_text(call, "id", at=at),
        name=require_text(function, "name", at=inside),
        arguments=require_text(function, "arguments", at=inside),
    )


# Tools and the form of the answer


def _tool(tool: JsonObject, at: str) -> ToolSpec:
    if tool.get("type") == "custom":
        raise unsupported(join(at, "type"), "The model calls functions with JSON arguments; offer a function.")
    fields.TOOL.check(tool, at=at)
    _check_function_type(tool, at)
    function, inside = read_object(tool, "function", at=at), join(at, "function")
    fields.FUNCTION.check(function, at=inside)
    return read_function(function, inside)


def _named(entry: JsonObject, at: str) -> str:
    return require_text(read_object(entry, "function", at=at), "name", at=join(at, "function"))


def _check_function_type(entry: JsonObject, at: str) -> None:
    kind = read_text(entry, "type", at=at)
    if kind not in (None, "function"):
        raise wrong_value(kind, "'function'", join(at, "type"))


def _response_format(body: JsonObject) -> ResponseFormat | None:
    if body.get("response_format") is None:
        return None
    return read_format(read_object(body, "response_format"), "response_format", nested="json_schema")
