"""Requests that a server must refuse: through an SDK, a field that cannot be; as bytes, what no SDK would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, Item, check_error, message, user
from ludus.checks.conformance.case import EXTENSION, named
from ludus.checks.conformance.expect import containing
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import CHAT, MESSAGES, RESPONSES, USAGE_CHUNK, Fields, Words, chat_schema

KING = message("king", "Name a colour.")
SMELL = user([{"type": "smell", "smell": "rose"}])
IMAGE = user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])
TELEPATHY: Fields = {"tools": [{"type": "telepathy"}]}
HAIKU = {"type": "haiku"}
MISSPELT = {"extra_body": {"temprature": 1}}
MISSPELT_NAMED = {"param": "temprature", "code": "unknown_parameter", "message": containing("'temperature'")}


def messages(*told: Item) -> Fields:
    return {"messages": told}


def choosing(words: Words, choice: Any = None) -> Fields:
    """A question with tools; the choice is of one that is not offered, if no other is named."""
    return {**words.calling, "tool_choice": choice or words.choose("get_lost")}


# What is refused, by the names of the cases, and its fields on top of those that every request of the protocol has.
FIELDS: dict[str, tuple[str, Fields]] = {
    "chat n/no_choices": ("n=0", {"n": 0}),
    "chat sampling fields/large_bias": ("a logit_bias beyond 100", {"logit_bias": {"5": 101}}),
    "chat sampling fields/strange_bias": ("a logit_bias of no token", {"logit_bias": {"red": 1}}),
    "chat sampling fields/cold": ("a negative temperature", {"temperature": -1}),
    "chat sampling fields/words": ("a temperature in words", {"temperature": "hot"}),
    "chat sampling fields/large_top_p": ("top_p above 1", {"top_p": 1.5}),
    "chat sampling fields/large_penalty": ("a penalty above 2", {"presence_penalty": 2.5}),
    "chat stop/numeric_stop": ("a stop that is a number", {"stop": 5}),
    "chat limits/negative_limit": ("max_tokens=-1", {"max_tokens": -1}),
    "chat limits/no_room": ("max_tokens=0", {"max_tokens": 0}),
    "chat limits/long_prompt": ("a prompt beyond the context", messages(user("red green " * 200_000))),
    "chat logprobs/top_alone": ("top_logprobs without logprobs", {"top_logprobs": 2}),
    "chat logprobs/too_many_top": ("a 21st likeliest token", {"logprobs": True, "top_logprobs": 21}),
    "chat tools/unknown_type": ("a tool of an unknown type", TELEPATHY),
    "chat tools/unnamed": ("a tool without a name", {"tools": [CHAT.offer({})]}),
    "chat forced tools/unknown_name": ("a choice that names no offered tool", choosing(CHAT)),
    "chat forced tools/required_without_tools": ("required without tools", {"tool_choice": "required"}),
    "chat forced tools/unknown_choice": ("an unknown tool_choice", choosing(CHAT, "perhaps")),
    "chat structured output/unknown_format": ("an unknown type of response", {"response_format": HAIKU}),
    "chat structured output/bad_schema": (
        "a schema that is none",
        {"response_format": chat_schema({"type": "colour"})},
    ),
    "chat reasoning/strange_effort": ("an unknown reasoning_effort", {"reasoning_effort": "heroic"}),
    "errors errors/empty_messages": ("an empty list of messages", messages()),
    "errors errors/text_messages": ("text in the place of messages", {"messages": "Name a colour."}),
    "errors errors/no_role": ("a message without a role", messages({"content": "Name a colour."})),
    "errors errors/unknown_role": ("a role that is unknown to the protocol", messages(KING)),
    "errors errors/no_content": ("a user's message without content", messages({"role": "user"})),
    "errors errors/numeric_content": ("content that is a number", messages(user(7))),
    "errors errors/unknown_part": ("a part of content of an unknown type", messages(SMELL)),
    "errors errors/nameless_result": ("a result that names no call", messages(*ASK, message("tool", "18 degrees"))),
    "errors errors/misspelt": ("a misspelt field", MISSPELT),
    "errors errors/options_without_stream": ("stream_options without stream", USAGE_CHUNK),
    "responses limits/no_room": ("max_output_tokens=0", {"max_output_tokens": 0}),
    "responses errors/misspelt": ("a misspelt field", MISSPELT),
    "responses errors/unknown_item": ("an item of an unknown type", {"input": [{"type": "telepathy"}]}),
    "responses errors/unknown_role": ("a role that is unknown to the protocol", {"input": [KING]}),
    "responses tools/unknown_tool": ("a tool of an unknown type", TELEPATHY),
    "responses forced tools/unknown_name": ("a choice that names no offered tool", choosing(RESPONSES)),
    "responses structured output/unknown_format": ("an unknown format", {"text": {"format": HAIKU}}),
    "messages sampling fields/cold": ("a negative temperature", {"temperature": -1}),
    "messages errors/unknown_block": ("a block of an unknown type", messages(SMELL)),
    "messages errors/misspelt": ("a misspelt field", MISSPELT),
    "messages forced tools/unknown_name": ("a choice that names no offered tool", choosing(MESSAGES)),
    "completions errors/unknown_ids": ("a token id beyond the vocabulary", {"prompt": [10_000_000]}),
    "completions errors/misspelt": ("a misspelt field", MISSPELT),
}
# The same where the error's fields are Ludus's own: what they hold.
NAMED: dict[str, tuple[str, Fields, Fields]] = {
    "chat n/too_many_choices": ("n=129, more than the protocol's own server takes,", {"n": 129}, {"param": "n"}),
    "chat stop/empty_stop": ("an empty stop string", {"stop": ""}, {"param": "stop"}),
    "errors errors/image": ("an image, where text only is read,", messages(IMAGE), {"code": "unsupported_content"}),
    "errors errors/misspelt_named": ("a misspelt field, with the one that was meant,", MISSPELT, MISSPELT_NAMED),
}

Sent = Callable[[Probe], Any]
"""The body: a JSON value, or bytes."""


def bytes_of(probe: Probe) -> bytes:
    return json.dumps(probe.fields()).encode()


def cold_stream(probe: Probe) -> Fields:
    return probe.fields(temperature=-1, stream=True)


# Requests without an SDK, and the statuses that are right; without any, 400 and 422.
BODIES: dict[str, tuple[str, Sent, *tuple[int, ...]]] = {
    "errors errors/no_json": ("a body that is no JSON", lambda _: b"{messages: []}"),
    "errors errors/cut_json": ("a body that is cut", lambda p: bytes_of(p)[:-2]),
    "errors errors/empty_body": ("an empty body", lambda _: b""),
    "errors errors/list_body": ("a body that is a list", lambda p: [p.fields()]),
    "errors errors/no_utf8": ("a body that is no UTF-8", lambda p: bytes_of(p).replace(b"colours", b"\xff\xfe\xfd")),
    "errors errors/deep_json": ("JSON nested deep", lambda _: b'{"messages": ' + b"[" * 100_000, 400, 413, 422),
    "errors errors/no_messages": ("a request without messages", lambda p: {"model": p.model}, 400),
    "errors errors/stream_in_words": ("a stream in words", lambda p: p.fields(stream="please")),
    "errors errors/refused_stream": ("a stream that cannot be", lambda p: p.fields(n=0, stream=True)),
    "responses errors/no_input": ("a request without input", lambda p: {"model": p.model}, 400),
    "responses errors/refused_stream": ("a stream that cannot be", cold_stream),
    "responses errors/unknown_previous": (
        "an unknown previous_response_id",
        lambda p: p.fields(previous_response_id="resp_nobody"),
        404,
        400,
    ),
    "messages limits/no_limit": ("a request without max_tokens", lambda p: {"model": p.model, "messages": ASK}, 400),
    "messages errors/error_shape": ("an empty list of messages", lambda p: p.fields(messages=[]), 400),
    "messages errors/no_json": ("a body that is no JSON", lambda _: b"{", 400),
    "messages errors/refused_stream": ("a stream that cannot be", cold_stream, 400),
    "completions errors/no_prompt": ("a request without a prompt", lambda p: {"model": p.model}),
}


async def _refuses(fields: Fields, error: Fields, probe: Probe) -> None:
    await probe.refused(probe.ask(**fields), **error)


async def _refuses_body(sent: Sent, statuses: tuple[int, ...], probe: Probe) -> None:
    body = sent(probe)
    answer = await probe.post(content=body if isinstance(body, bytes) else json.dumps(body).encode())
    check_error(answer, *(statuses or (400, 422)), of_messages=probe.words is MESSAGES)
    if probe.words is MESSAGES:
        expect.equal("type of the error", answer.json()["error"]["type"], "invalid_request_error")


REFUSED = (
    *(named(name, f"{what} is refused", partial(_refuses, fields, {})) for name, (what, fields) in FIELDS.items()),
    *(
        named(name, f"{what} is refused", partial(_refuses, fields, error), ours=EXTENSION)
        for name, (what, fields, error) in NAMED.items()
    ),
    *(
        named(name, f"{what} is refused", partial(_refuses_body, sent, tuple(statuses)))
        for name, (what, sent, *statuses) in BODIES.items()
    ),
)
