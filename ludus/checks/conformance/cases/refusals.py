"""Requests that a server must refuse: through an SDK, a field that cannot be; as bytes, what no SDK would send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import Case
from ludus.checks.conformance.cases.asks import (
    ASK_WEATHER,
    CHAT_TOOLS,
    MESSAGE_TOOLS,
    QUESTION,
    RESPONSE_TOOLS,
    chat_schema,
    check_error,
)
from ludus.checks.conformance.probe import ASK, Fields, Probe

CHAT = "/chat/completions"
KING = {"role": "king", "content": "Name a colour."}
SMELL = {"type": "smell", "smell": "rose"}
CALLING: Fields = {"messages": ASK_WEATHER, "tools": CHAT_TOOLS}
LOST = {"type": "function", "function": {"name": "get_lost"}}
MISSPELT = {"extra_body": {"temprature": 1}}


def messages(*told: Any) -> Fields:
    return {"messages": list(told)}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# What is refused, by the names of the cases, and its fields on top of those that every request of the protocol has.
FIELDS: dict[str, dict[str, tuple[str, Fields]]] = {
    "chat": {
        "n/no_choices": ("n=0", {"n": 0}),
        "sampling fields/large_bias": ("a logit_bias beyond 100", {"logit_bias": {"5": 101}}),
        "sampling fields/strange_bias": ("a logit_bias of no token", {"logit_bias": {"red": 1}}),
        "sampling fields/cold": ("a negative temperature", {"temperature": -1}),
        "sampling fields/words": ("a temperature in words", {"temperature": "hot"}),
        "sampling fields/large_top_p": ("top_p above 1", {"top_p": 1.5}),
        "sampling fields/large_penalty": ("a penalty above 2", {"presence_penalty": 2.5}),
        "stop/numeric_stop": ("a stop that is a number", {"stop": 5}),
        "limits/negative_limit": ("max_tokens=-1", {"max_tokens": -1}),
        "limits/no_room": ("max_tokens=0", {"max_tokens": 0}),
        "limits/long_prompt": ("a prompt beyond the context", messages(user("red green " * 200_000))),
        "logprobs/top_alone": ("top_logprobs without logprobs", {"top_logprobs": 2}),
        "logprobs/too_many_top": ("a 21st likeliest token", {"logprobs": True, "top_logprobs": 21}),
        "tools/unknown_type": ("a tool of an unknown type", {"tools": [{"type": "telepathy"}]}),
        "tools/unnamed": ("a tool without a name", {"tools": [{"type": "function", "function": {}}]}),
        "forced tools/unknown_name": ("a choice that names no offered tool", {**CALLING, "tool_choice": LOST}),
        "forced tools/required_without_tools": ("required without tools", {"tool_choice": "required"}),
        "forced tools/unknown_choice": ("an unknown tool_choice", {**CALLING, "tool_choice": "perhaps"}),
        "structured output/unknown_format": ("an unknown type of response", {"response_format": {"type": "haiku"}}),
        "structured output/bad_schema": ("a schema that is none", {"response_format": chat_schema({"type": "colour"})}),
        "reasoning/strange_effort": ("an unknown reasoning_effort", {"reasoning_effort": "heroic"}),
    },
    "errors": {
        "errors/empty_messages": ("an empty list of messages", messages()),
        "errors/text_messages": ("text in the place of messages", {"messages": "Name a colour."}),
        "errors/no_role": ("a message without a role", messages({"content": "Name a colour."})),
        "errors/unknown_role": ("a role that is unknown to the protocol", messages(KING)),
        "errors/no_content": ("a user's message without content", messages({"role": "user"})),
        "errors/numeric_content": ("content that is a number", messages(user(7))),
        "errors/unknown_part": ("a part of content of an unknown type", messages(user([SMELL]))),
        "errors/nameless_result": (
            "a tool's result that names no call",
            messages(*ASK, {"role": "tool", "content": "18 degrees"}),
        ),
        "errors/misspelt": ("a misspelt field", MISSPELT),
        "errors/options_without_stream": ("stream_options without stream", {"stream_options": {"include_usage": True}}),
    },
    "responses": {
        "limits/no_room": ("max_output_tokens=0", {"max_output_tokens": 0}),
        "errors/misspelt": ("a misspelt field", MISSPELT),
        "errors/unknown_item": ("an item of an unknown type", {"input": [{"type": "telepathy"}]}),
        "errors/unknown_role": ("a role that is unknown to the protocol", {"input": [KING]}),
        "tools/unknown_tool": ("a tool of an unknown type", {"tools": [{"type": "telepathy"}]}),
        "forced tools/unknown_name": (
            "a choice that names no offered tool",
            {"input": QUESTION, "tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "get_lost"}},
        ),
        "structured output/unknown_format": ("an unknown format", {"text": {"format": {"type": "haiku"}}}),
    },
    "messages": {
        "sampling fields/cold": ("a negative temperature", {"temperature": -1}),
        "errors/unknown_block": ("a block of an unknown type", messages(user([SMELL]))),
        "errors/misspelt": ("a misspelt field", MISSPELT),
        "forced tools/unknown_name": (
            "a choice that names no offered tool",
            {"messages": ASK_WEATHER, "tools": MESSAGE_TOOLS, "tool_choice": {"type": "tool", "name": "get_lost"}},
        ),
    },
    "completions": {
        "errors/unknown_ids": ("a token id beyond the vocabulary", {"prompt": [10_000_000]}),
        "errors/misspelt": ("a misspelt field", MISSPELT),
    },
}

Sent = Callable[[Probe], Any]
"""The body: a JSON value, or bytes."""


def chat_bytes(probe: Probe) -> bytes:
    return json.dumps(probe.chat_fields()).encode()


# Requests without an SDK, and the statuses that are right; without any, 400 and 422.
BODIES: dict[str, dict[str, tuple[str, Sent, *tuple[int, ...]]]] = {
    "errors": {
        "errors/no_json": ("a body that is no JSON", lambda _: b"{messages: []}"),
        "errors/cut_json": ("a body that is cut", lambda p: chat_bytes(p)[:-2]),
        "errors/empty_body": ("an empty body", lambda _: b""),
        "errors/list_body": ("a body that is a list", lambda p: [p.chat_fields()]),
        "errors/no_utf8": ("a body that is no UTF-8", lambda p: chat_bytes(p).replace(b"colours", b"\xff\xfe\xfd")),
        "errors/deep_json": (
            "JSON nested a hundred thousand deep",
            lambda _: b'{"messages": ' + b"[" * 100_000,
            400,
            413,
            422,
        ),
        "errors/no_messages": ("a request without messages", lambda p: {"model": p.model}, 400),
        "errors/stream_in_words": ("a stream in words", lambda p: {**p.chat_fields(), "stream": "please"}),
        "errors/refused_stream": ("a stream that cannot be", lambda p: {**p.chat_fields(n=0), "stream": True}),
    },
    "responses": {
        "errors/no_input": ("a request without input", lambda p: {"model": p.model}, 400),
        "errors/refused_stream": (
            "a stream that cannot be",
            lambda p: {**p.response_fields(temperature=-1), "stream": True},
        ),
        "errors/unknown_previous": (
            "an unknown previous_response_id",
            lambda p: p.response_fields(previous_response_id="resp_nobody"),
            404,
            400,
        ),
    },
    "messages": {
        "limits/no_limit": ("a request without max_tokens", lambda p: {"model": p.model, "messages": ASK}, 400),
        "errors/error_shape": ("an empty list of messages", lambda p: p.message_fields(messages=[]), 400),
        "errors/no_json": ("a body that is no JSON", lambda _: b"{", 400),
        "errors/refused_stream": (
            "a stream that cannot be",
            lambda p: {**p.message_fields(temperature=-1), "stream": True},
            400,
        ),
    },
    "completions": {
        "errors/no_prompt": ("a request without a prompt", lambda p: {"model": p.model}),
    },
}


PATHS = {"responses": "/responses", "messages": "/messages", "completions": "/completions"}


async def _refuses(protocol: str, fields: Fields, probe: Probe) -> None:
    asks = {"responses": probe.respond, "messages": probe.message, "completions": probe.complete}
    await probe.refused(asks.get(protocol, probe.chat)(**fields))


async def _refuses_body(protocol: str, sent: Sent, statuses: tuple[int, ...], probe: Probe) -> None:
    body = sent(probe)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await probe.post(PATHS.get(protocol, CHAT), content=content)
    error = check_error(answer, *(statuses or (400, 422)), of_messages=protocol == "messages")
    if protocol == "messages":
        expect.equal("type of the error", error["type"], "invalid_request_error")


def _cases() -> Iterator[Case]:
    protocol: Any
    topic: Any
    for protocol, rows in FIELDS.items():
        for name, (what, fields) in rows.items():
            topic, _, title = name.partition("/")
            yield Case(protocol, topic, f"{what} is refused", partial(_refuses, protocol, fields), title=title)
    for protocol, bodies in BODIES.items():
        for name, (what, sent, *statuses) in bodies.items():
            topic, _, title = name.partition("/")
            yield Case(
                protocol,
                topic,
                f"{what} is refused",
                partial(_refuses_body, protocol, sent, tuple(statuses)),
                title=title,
            )


REFUSED = tuple(_cases())
