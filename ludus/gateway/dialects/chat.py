"""OpenAI Chat Completions: what a request asks for, the answer at once, the answer as server-sent events.

Knows: the fields of `POST /v1/chat/completions`.  Knows not: HTTP, sessions, tokenizers.
Every field of a request is honoured, accepted and named as ignored (it cannot change a token), or refused with an
AgentError. Fields that only other servers of this protocol know are honoured where the engine can: top_k, min_p,
repetition_penalty, stop_token_ids, chat_template_kwargs, and reasoning_content on assistant messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.errors import AgentError
from ludus.gateway.dialects.base import Answer, JsonObject, ParsedRequest, ReadMessages, Refusal
from ludus.gateway.dialects.fields import (
    as_object,
    join,
    missing,
    read_array,
    read_boolean,
    read_integer,
    read_object,
    read_text,
    refuse_unknown,
    require_text,
    unsupported,
    wrong_type,
    wrong_value,
)
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS, read_sampling
from ludus.record.recorder import finish_reason
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from ludus.types import ChatRequest, Message, Sampling, ToolCall, ToolSpec, Turn

DEFAULT_MODEL = "default"
MAX_CHOICES = 128  # as OpenAI's own
# JSON has no infinity; OpenAI's servers write this for a token that cannot occur.
LEAST_LOGPROB = -9999.0
_DONE = b"data: [DONE]\n\n"

HONOURED = SAMPLING_FIELDS | frozenset(
    [
        "messages",
        "model",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "n",
        "logprobs",
        "stream",
        "stream_options",
        "chat_template_kwargs",
    ]
)
IGNORED = (
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
# Field: the one value besides null that asks for nothing, and what the agent can do instead.
REFUSED: Mapping[str, tuple[object, str]] = {
    "audio": (None, "The model writes text only."),
    "function_call": ("none", "Use 'tool_choice'."),
    "functions": ([], "Use 'tools'."),
    "logit_bias": ({}, "Leave it out; logits cannot be biased."),
    "modalities": (["text"], "The model writes text only."),
    "moderation": (None, "Leave it out; nothing is moderated."),
    "reasoning_effort": (None, "Pass what the model's chat template takes in 'chat_template_kwargs'."),
    "response_format": ({"type": "text"}, "Only {'type': 'text'} is served; ask for the format in a message."),
    "verbosity": (None, "Ask for it in a message."),
    "web_search_options": (None, "Offer a search tool in 'tools'."),
}
KNOWN = HONOURED | frozenset(IGNORED) | frozenset(REFUSED)

MESSAGE_FIELDS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"name"}),
    "developer": frozenset({"name"}),
    "user": frozenset({"name"}),
    # The last four are in every message that the SDK hands out, so agents send them back; they must be empty.
    "assistant": frozenset(
        ["name", "tool_calls", "reasoning_content", "reasoning", "refusal", "annotations", "audio", "function_call"]
    ),
    "tool": frozenset({"name", "tool_call_id"}),
}


class ChatDialect:
    """OpenAI's Chat Completions as a `Dialect`."""

    paths = ("/chat/completions",)

    def parse(self, body: JsonObject, defaults: Sampling, read: ReadMessages) -> ParsedRequest:
        refuse_unknown(body, KNOWN)
        _refuse_unserved(body)
        logprobs = read_boolean(body, "logprobs", False)
        if body.get("top_logprobs") is not None and not logprobs:
            raise wrong_value(body["top_logprobs"], "only together with 'logprobs': true", "top_logprobs")
        stream, include_usage, ignored = _stream_options(body)
        messages, num_new_messages = _messages(body, read)
        request = ChatRequest(
            messages=messages,
            tools=_tools(body),
            sampling=read_sampling(body, defaults),
            n=read_integer(body, "n", 1, low=1, high=MAX_CHOICES),
            template_kwargs=read_object(body, "chat_template_kwargs"),
        )
        return ParsedRequest(
            request=request,
            model=read_text(body, "model") or DEFAULT_MODEL,
            stream=stream,
            include_usage=include_usage,
            logprobs=logprobs,
            ignored=(*(name for name in IGNORED if body.get(name) is not None), *ignored),
            num_new_messages=num_new_messages,
        )

    def response(self, answer: Answer, parsed: ParsedRequest, model_name: str) -> JsonObject:
        return {
            "id": answer.turns[0].id,
            "object": "chat.completion",
            "created": int(answer.turns[0].started_at),
            "model": model_name,
            "choices": [
                {
                    "index": i,
                    "message": _message_json(turn.reply),
                    "logprobs": _logprobs(turn, answer) if parsed.logprobs else None,
                    "finish_reason": finish_reason(turn),
                    **_turn_id(turn, i),
                }
                for i, turn in enumerate(answer.turns)
            ],
            "usage": _usage(answer),
        }

    def writer(self, parsed: ParsedRequest, model_name: str, created_at: float) -> ChatStream:
        return ChatStream(parsed, model_name, created_at)

    def error(self, error: Refusal) -> JsonObject:
        return {
            "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code},
        }


class ChatStream:
    """The chunks of one streamed answer: a role for each choice, deltas, a finish reason for each, usage if asked."""

    def __init__(self, parsed: ParsedRequest, model_name: str, created_at: float) -> None:
        self._parsed = parsed
        self._head: JsonObject = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": int(created_at),
            "model": model_name,
        }
        self._begun: set[int] = set()

    def start(self, turn_ids: tuple[str, ...]) -> bytes:
        self._head["id"] = turn_ids[0]
        return b"".join(self._chunk(i, {"role": "assistant"}) for i in range(len(turn_ids)))

    def delta(self, choice_idx: int, delta: Delta) -> bytes:
        self._begun.add(choice_idx)
        return self._chunk(choice_idx, _delta_json(delta))

    def finish(self, answer: Answer) -> bytes:
        parts = [self._end(i, turn, answer) for i, turn in enumerate(answer.turns)]
        if self._parsed.include_usage:
            parts.append(_event({**self._head, "choices": [], "usage": _usage(answer)}))
        return b"".join(parts) + _DONE

    def error(self, error: Refusal) -> bytes:
        return _event(ChatDialect().error(error)) + _DONE

    def _end(self, choice_idx: int, turn: Turn, answer: Answer) -> bytes:
        # A retry may be answered by the turn of the first try, which has no deltas of its own to send again.
        deltas = () if choice_idx in self._begun else _whole_reply(turn.reply)
        begun = b"".join(self._chunk(choice_idx, _delta_json(delta)) for delta in deltas)
        logprobs = _logprobs(turn, answer) if self._parsed.logprobs else None
        last = {"logprobs": logprobs, "finish_reason": finish_reason(turn), **_turn_id(turn, choice_idx)}
        return begun + self._chunk(choice_idx, {}, last)

    def _chunk(self, choice_idx: int, delta: JsonObject, last: Mapping[str, Any] = {}) -> bytes:
        choice = {"index": choice_idx, "delta": delta, "logprobs": None, "finish_reason": None, **last}
        chunk = {**self._head, "choices": [choice]}
        return _event({**chunk, "usage": None} if self._parsed.include_usage else chunk)


# ---- reading -------------------------------------------------------------------------------------------------------


def _refuse_unserved(body: JsonObject) -> None:
    for name, (harmless, instead) in REFUSED.items():
        value = body.get(name)
        if value is not None and value != harmless:
            raise unsupported(name, instead)


def _stream_options(body: JsonObject) -> tuple[bool, bool, tuple[str, ...]]:
    """Whether to stream, whether to end with usage, and the options without effect."""
    stream = read_boolean(body, "stream", False)
    options = read_object(body, "stream_options")
    if options and not stream:
        raise wrong_value(options, "only together with 'stream': true", "stream_options")
    refuse_unknown(options, ("include_usage", "include_obfuscation"), at="stream_options")
    obfuscation = read_boolean(options, "include_obfuscation", False, at="stream_options")
    ignored = ("stream_options.include_obfuscation",) if obfuscation else ()
    return stream, read_boolean(options, "include_usage", False, at="stream_options"), ignored


def _messages(body: JsonObject, read: ReadMessages) -> tuple[tuple[Message, ...], int]:
    """The messages, and how many of them were not known."""
    entries = read_array(body, "messages")
    if not entries:
        raise missing("messages") if body.get("messages") is None else wrong_value([], "at least one", "messages")
    messages = read.known(entries)
    num_known = len(messages)
    messages += [_message(as_object(entry, at), at) for at, entry in _numbered("messages", entries, start=num_known)]
    read.remember(entries, messages)
    return tuple(messages), len(entries) - num_known


def _message(entry: JsonObject, at: str) -> Message:
    role = require_text(entry, "role", at=at)
    if role not in MESSAGE_FIELDS:
        raise wrong_value(role, ", ".join(MESSAGE_FIELDS), join(at, "role"))
    refuse_unknown(entry, MESSAGE_FIELDS[role] | {"role", "content"}, at=at)
    for name in ("refusal", "annotations", "audio", "function_call"):
        if entry.get(name):
            raise unsupported(join(at, name), "Leave it out; the model's own replies never have it.")
    content = _content(entry, at)
    if content is None and role != "assistant":
        raise missing(join(at, "content"))
    reasoning = read_text(entry, "reasoning_content", at=at)
    return Message(
        role=role,  # type: ignore[arg-type]  # a key of MESSAGE_FIELDS
        content=content,
        reasoning=read_text(entry, "reasoning", at=at) if reasoning is None else reasoning,
        tool_calls=tuple(
            _tool_call(as_object(call, call_at), call_at)
            for call_at, call in _numbered(join(at, "tool_calls"), read_array(entry, "tool_calls", at=at))
        ),
        tool_call_id=require_text(entry, "tool_call_id", at=at) if role == "tool" else None,
        name=read_text(entry, "name", at=at),
    )


def _content(entry: JsonObject, at: str) -> str | None:
    """The text of a message; parts follow one another with nothing between, as templates that take parts write them."""
    content = entry.get("content")
    if content is None or isinstance(content, str):
        return content
    param = join(at, "content")
    if not isinstance(content, list):
        raise wrong_type(content, "a string or an array of text parts", param)
    return "".join(_text_part(as_object(part, part_at), part_at) for part_at, part in _numbered(param, content))


def _text_part(part: JsonObject, at: str) -> str:
    kind = require_text(part, "type", at=at)
    if kind != "text":
        raise AgentError(
            f"Invalid value for '{at}.type': {kind!r}. Allowed: 'text'; the model reads text only.",
            code="unsupported_content",
            param=at,
        )
    refuse_unknown(part, ("type", "text"), at=at)
    return require_text(part, "text", at=at)


def _tool_call(call: JsonObject, at: str) -> ToolCall:
    refuse_unknown(call, ("id", "type", "function", "index"), at=at)
    _check_function_type(call, at)
    function = read_object(call, "function", at=at)
    inside = join(at, "function")
    refuse_unknown(function, ("name", "arguments"), at=inside)
    return ToolCall(
        id=require_text(call, "id", at=at),
        name=require_text(function, "name", at=inside),
        arguments=require_text(function, "arguments", at=inside),
    )


def _tools(body: JsonObject) -> tuple[ToolSpec, ...]:
    tools = tuple(_tool(as_object(tool, at), at) for at, tool in _numbered("tools", read_array(body, "tools")))
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "Only 'auto' and 'none' are served; ask for the call in a message.")
    if choice == "none":
        return ()
    if tools and not read_boolean(body, "parallel_tool_calls", True):
        raise unsupported("parallel_tool_calls", "The model decides how many tools it calls; leave it out.")
    return tools


def _tool(tool: JsonObject, at: str) -> ToolSpec:
    refuse_unknown(tool, ("type", "function"), at=at)
    _check_function_type(tool, at)
    function = read_object(tool, "function", at=at)
    inside = join(at, "function")
    refuse_unknown(function, ("name", "description", "parameters", "strict"), at=inside)
    if read_boolean(function, "strict", False, at=inside):
        raise unsupported(join(inside, "strict"), "Arguments are not constrained to the schema; set it to false.")
    return ToolSpec(
        name=require_text(function, "name", at=inside),
        description=read_text(function, "description", at=inside) or "",
        parameters=read_object(function, "parameters", at=inside),
    )


def _check_function_type(entry: JsonObject, at: str) -> None:
    kind = read_text(entry, "type", at=at)
    if kind not in (None, "function"):
        raise wrong_value(kind, "'function'", join(at, "type"))


def _numbered(at: str, entries: list[Any], start: int = 0) -> Iterable[tuple[str, Any]]:
    return ((f"{at}[{i}]", entry) for i, entry in enumerate(entries[start:], start))


# ---- writing -------------------------------------------------------------------------------------------------------


def _message_json(reply: Message) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def _whole_reply(reply: Message) -> Iterable[Delta]:
    if reply.reasoning is not None:
        yield ReasoningDelta(reply.reasoning)
    if reply.content is not None:
        yield ContentDelta(reply.content)
    for i, call in enumerate(reply.tool_calls):
        yield ToolCallDelta(i, call.id, call.name, call.arguments)


def _delta_json(delta: Delta) -> JsonObject:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    call: JsonObject = {"index": delta.index}
    function: JsonObject = {"arguments": delta.arguments}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
    if delta.name is not None:
        function = {"name": delta.name, **function}
    return {"tool_calls": [{**call, "function": function}]}


def _turn_id(turn: Turn, choice_idx: int) -> JsonObject:
    """The id by which a choice after the first can be given a reward; the first has the completion's."""
    return {"turn_id": turn.id} if choice_idx else {}


def _logprobs(turn: Turn, answer: Answer) -> JsonObject:
    sampled = turn.sampled
    top = sampled.top_logprobs or ((),) * len(sampled.token_ids)
    return {
        "content": [
            {**_token(token_id, logprob, answer), "top_logprobs": [_token(*likely, answer) for likely in likeliest]}
            for token_id, logprob, likeliest in zip(sampled.token_ids, sampled.logprobs, top, strict=True)
        ],
        "refusal": None,
    }


def _token(token_id: int, logprob: float, answer: Answer) -> JsonObject:
    text = answer.token_text(token_id)
    # A token that is only a part of a character has no text of its own, hence no bytes to tell.
    raw = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "bytes": raw, "logprob": max(logprob, LEAST_LOGPROB)}


def _usage(answer: Answer) -> JsonObject:
    num_sampled = answer.num_sampled_tokens
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.num_prompt_tokens + num_sampled,
        "prompt_tokens_details": {"cached_tokens": answer.turns[0].sampled.num_cached_tokens},
    }


def _event(payload: JsonObject) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
