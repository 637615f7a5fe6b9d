"""The protocols in terms that all of them share: how each is asked and answers, so that a law of several is told once.

Knows: the fields of each protocol.  Knows not: laws.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ludus.checks.conformance.case import Case, Protocol, law_of
from ludus.checks.conformance.cases.asks import (
    ASK_WEATHER,
    CHAT_TOOLS,
    MESSAGE_TOOLS,
    QUESTION,
    RESPONSE_TOOLS,
    chat_schema,
    json_schema,
)
from ludus.checks.conformance.probe import ASK, Fields, Probe
from ludus.checks.conformance.replies import (
    Reply,
    of_chat,
    of_chunks,
    of_completion,
    of_completion_chunks,
    of_message,
    of_message_events,
    of_response,
    of_response_events,
)

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol."""

    protocol: Protocol
    path: str
    fields: Callable[..., Item]
    """Of a request, beside those that are named."""
    whole: tuple[Callable[..., Awaitable[Any]], Callable[[Any], Reply]]
    streamed: tuple[Callable[..., Awaitable[Any]], Callable[[Any], Reply]]
    id_prefix: str
    sampling: Fields
    ignored: Fields
    """Fields without effect."""
    limit: str = "max_tokens"
    cut: str = "length"
    """How an answer ends that a limit cut, one that ends by itself, and one that calls."""
    ended: str = "stop"
    called: str = "tool_calls"
    stop: Fields = field(default_factory=dict)
    counted: Fields = field(default_factory=dict)
    """What has the counts of a stream told."""
    calling: Fields = field(default_factory=dict)
    """A question with two tools."""
    no_calls: Any = "none"
    must_call: Any = "required"
    call_time: Any = None
    one_call: Fields = field(default_factory=dict)
    told: Callable[[str], Sequence[Fields]] = lambda _: ()
    """A system text, in every shape of it."""
    asked: Callable[[str], Sequence[Fields]] = lambda _: ()
    """A question, in every shape of it."""
    goes_on: Callable[[Reply, Sequence[Item], str | None], Fields] = lambda *_: {}
    """A question, the reply to it as the SDK gave it, results of its calls if there is no other question."""
    formed: Callable[[Item], Fields] = lambda _: {}
    """An answer in JSON by a schema."""
    said: Callable[[Any], str] = lambda _: ""
    """The text in an event of a stream."""

    async def ask(self, probe: Probe, **fields: Any) -> Reply:
        """The reply at once."""
        asks, reads = self.whole
        return reads(await asks(probe, **fields))

    async def stream(self, probe: Probe, **fields: Any) -> Reply:
        """The reply that a stream adds up to."""
        asks, reads = self.streamed
        return reads(await asks(probe, **fields))


Law = Callable[..., Awaitable[None]]


def law(name: str, protocols: str, *, ours: str | None = None) -> Callable[[Law], tuple[Case, ...]]:
    """Makes a Case for each protocol of the function below it, whose docstring is the law.

    name: topic and the cases' own part of the name, as in `text/usage`; where a protocol's case has another, the
    protocol is followed by it: `chat=max_tokens`.
    """
    topic: Any
    topic, _, common = name.partition("/")

    def make(body: Law) -> tuple[Case, ...]:
        cases = []
        for spec in protocols.split():
            protocol, _, title = spec.partition("=")
            wire = next(wire for wire in (CHAT, RESPONSES, MESSAGES, COMPLETIONS) if wire.protocol == protocol)
            cases.append(Case(wire.protocol, topic, law_of(body), partial(body, wire=wire), ours, title or common))
        return tuple(cases)

    return make


def user(content: Any) -> Item:
    return {"role": "user", "content": content}


def _dump(item: Any) -> Item:
    dumped: Item = item.model_dump(exclude_none=True)
    return dumped


def _chat_goes_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in reply.calls]
    more = results if text is None else [user(text)]
    return {"messages": [*asked, _dump(reply.raw.choices[0].message), *more]}


def _responses_go_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"type": "function_call_output", "call_id": call.id, "output": "noon"} for call in reply.calls]
    more = results if text is None else [user(text)]
    return {"input": [*asked, *map(_dump, reply.raw.output), *more]}


def _messages_go_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "noon"} for call in reply.calls]
    said = {"role": "assistant", "content": [_dump(block) for block in reply.raw.content]}
    return {"messages": [*asked, said, user(results if text is None else text)]}


CHAT = Wire(
    "chat",
    "/chat/completions",
    Probe.chat_fields,
    (Probe.chat, of_chat),
    (Probe.chat_chunks, of_chunks),
    "chatcmpl-",
    {
        "temperature": 0.7,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "seed": 1,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    },
    {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    stop={"stop": "e"},
    counted={"stream_options": {"include_usage": True}},
    calling={"messages": ASK_WEATHER, "tools": CHAT_TOOLS},
    call_time={"type": "function", "function": {"name": "get_time"}},
    one_call={"parallel_tool_calls": False},
    told=lambda text: [{"messages": [{"role": "system", "content": text}, *ASK]}],
    asked=lambda text: [{"messages": [user(text)]}, {"messages": [user([{"type": "text", "text": text}])]}],
    goes_on=_chat_goes_on,
    formed=lambda schema: {"response_format": chat_schema(schema), "max_tokens": 200},
    said=lambda event: event["choices"][0]["delta"].get("content") or "",
)
RESPONSES = Wire(
    "responses",
    "/responses",
    Probe.response_fields,
    (Probe.respond, of_response),
    (Probe.response_events, of_response_events),
    "resp_",
    {"temperature": 0.7, "top_p": 0.9, "max_output_tokens": 30},
    {"user": "me", "store": True, "service_tier": "auto"},
    limit="max_output_tokens",
    cut="max_output_tokens",
    ended="completed",
    called="completed",
    calling={"input": [user(QUESTION)], "tools": RESPONSE_TOOLS},
    call_time={"type": "function", "name": "get_time"},
    one_call={"parallel_tool_calls": False},
    told=lambda text: [{"instructions": text}],
    asked=lambda text: [
        {"input": text},
        {"input": [user(text)]},
        {"input": [user([{"type": "input_text", "text": text}])]},
    ],
    goes_on=_responses_go_on,
    formed=lambda schema: {"text": {"format": json_schema(schema)}, "max_output_tokens": 200},
)
MESSAGES = Wire(
    "messages",
    "/messages",
    Probe.message_fields,
    (Probe.message, of_message),
    (Probe.message_events, of_message_events),
    "msg_",
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 30},
    {"metadata": {"user_id": "me"}, "service_tier": "auto"},
    cut="max_tokens",
    ended="end_turn",
    called="tool_use",
    stop={"stop_sequences": ["e"]},
    calling={"messages": ASK_WEATHER, "tools": MESSAGE_TOOLS},
    no_calls={"type": "none"},
    must_call={"type": "any"},
    call_time={"type": "tool", "name": "get_time"},
    one_call={"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    told=lambda text: [{"system": text}, {"system": [{"type": "text", "text": text}]}],
    asked=lambda text: [{"messages": [user(text)]}, {"messages": [user([{"type": "text", "text": text}])]}],
    goes_on=_messages_go_on,
    said=lambda event: event.get("delta", {}).get("text") or "",
)
COMPLETIONS = Wire(
    "completions",
    "/completions",
    Probe.completion_fields,
    (Probe.complete, of_completion),
    (Probe.completion_chunks, of_completion_chunks),
    "cmpl-",
    {},
    {"user": "me"},
    stop={"stop": ["e"]},
    counted={"stream_options": {"include_usage": True}},
)
