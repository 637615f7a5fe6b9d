"""Describes the protocols in common terms (requests and answers), so that a rule of several protocols is one function.

Knows: the fields of each protocol, and how its SDK is called.  Knows not: laws, servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.checks.conformance.asks import ASK, CITY, FUNCTIONS, QUESTION, Item, message, user
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

Fields = Mapping[str, Any]
SYSTEM = "You are a painter of few words."
RESULT = "noon"
ROOM_FOR_JSON = 200  # tokens; what a small model writes under the suite's schemas is shorter


@dataclass(frozen=True, slots=True)
class Words:
    """One protocol."""

    path: str
    resource: Callable[[Any], Any]
    """Returns a probe's SDK resource that creates answers."""
    question: Fields
    """The default question of requests."""
    whole: Callable[[Any], Reply]
    streamed: Callable[[Sequence[Any]], Reply]
    id_prefix: str
    ignored: Fields
    """Fields without effect."""
    sampling: Fields = field(default_factory=dict)
    older: tuple[str, ...] = ()
    """Fields that the SDK no longer supports."""
    order: str = ""
    """The types of a streamed text's events, without repeats."""
    limit: str = "max_tokens"
    cut: str = "length"
    """End reasons: of an answer cut by a limit, one that ends by itself, and one with calls."""
    ended: str = "stop"
    called: str = "tool_calls"
    stop: Fields = field(default_factory=dict)
    counted: Fields = field(default_factory=dict)
    """Fields that request token counts in a stream."""
    offer: Callable[[Item], Item] = lambda _: {}
    """Returns a function as a tool of the protocol."""
    no_calls: Any = "none"
    must_call: Any = "required"
    choose: Callable[[str], Item] = lambda _: {}
    """Returns the choice of a tool by name."""
    one_call: Fields = field(default_factory=lambda: {"parallel_tool_calls": False})
    system: Sequence[Fields] = ()
    """`SYSTEM`, in every form that the protocol allows."""
    shapes: Sequence[Fields] = ()
    """The question of `ASK`, in every form that the protocol allows."""
    goes_on: Callable[[Reply, Sequence[Item], str | None], Fields] = lambda *_: {}
    """Returns the next request: earlier messages, the reply as the SDK returned it, then a new question, or, if that is
    None, results of its calls."""
    formed: Callable[[Item | None], Fields] = lambda _: {}
    """Returns the fields for a JSON answer with a schema. None: any object."""
    text_in: Callable[[Any], str] = lambda _: ""
    """Returns the text in an event of a stream."""
    arguments_in: Callable[[Any], str] = lambda _: ""
    """Returns the piece of a call's arguments in an event of the SDK."""

    @property
    def tools(self) -> list[Item]:
        return [self.offer(function) for function in FUNCTIONS]

    @property
    def calling(self) -> dict[str, Any]:
        """Fields of a question with two tools."""
        return {self.messages: [user(QUESTION)], "tools": self.tools}

    @property
    def messages(self) -> str:
        """Name of the field with the messages."""
        return next(iter(self.question))


def _dump(item: Any) -> Item:
    dumped: Item = item.model_dump(exclude_none=True)
    return dumped


def _chat_goes_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in reply.calls]
    return {"messages": [*asked, _dump(reply.raw.choices[0].message), *(results if text is None else [user(text)])]}


def _responses_go_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"type": "function_call_output", "call_id": call.id, "output": RESULT} for call in reply.calls]
    return {"input": [*asked, *map(_dump, reply.raw.output), *(results if text is None else [user(text)])]}


def _messages_go_on(reply: Reply, asked: Sequence[Item], text: str | None) -> Fields:
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in reply.calls]
    reply_back = message("assistant", [_dump(block) for block in reply.raw.content])
    return {"messages": [*asked, reply_back, user(results if text is None else text)]}


def _chat_arguments(chunk: Any) -> str:
    deltas = [choice.delta for choice in chunk.choices]
    return "".join(part.function.arguments or "" for delta in deltas for part in delta.tool_calls or ())


def chat_schema(schema: Item) -> Fields:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}


def _chat_formed(schema: Item | None) -> Fields:
    form = {"type": "json_object"} if schema is None else chat_schema(schema)
    return {"response_format": form, "max_tokens": ROOM_FOR_JSON}


def _response_formed(schema: Item | None) -> Fields:
    form = {"type": "json_schema", "name": "point", "schema": schema, "strict": True}
    return {"text": {"format": form if schema else {"type": "json_object"}}, "max_output_tokens": ROOM_FOR_JSON}


def _parts(kind: str) -> list[Item]:
    """The question of `ASK` as text, and as a content part of this type."""
    text = ASK[0]["content"]
    return [user(text), user([{"type": kind, "text": text}])]


USAGE_CHUNK = {"stream_options": {"include_usage": True}}
PENALTIES = {"presence_penalty": 0.1, "frequency_penalty": -0.1}
CHAT = Words(
    "/chat/completions",
    lambda probe: probe.openai.chat.completions,
    {"messages": ASK},
    of_chat,
    of_chunks,
    "chatcmpl-",
    {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    {"temperature": 0.7, "top_p": 0.9, **PENALTIES, "seed": 1, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1},
    stop={"stop": "e"},
    counted=USAGE_CHUNK,
    offer=lambda function: {"type": "function", "function": function},
    choose=lambda name: {"type": "function", "function": {"name": name}},
    system=[{"messages": [message("system", SYSTEM), *ASK]}],
    shapes=[{"messages": [one]} for one in _parts("text")],
    goes_on=_chat_goes_on,
    formed=_chat_formed,
    text_in=lambda event: event["choices"][0]["delta"].get("content") or "",
    arguments_in=_chat_arguments,
)
RESPONSES = Words(
    "/responses",
    lambda probe: probe.openai.responses,
    {"input": ASK[0]["content"]},
    of_response,
    of_response_events,
    "resp_",
    {"user": "me", "store": True, "service_tier": "auto"},
    {"temperature": 0.7, "top_p": 0.9, "max_output_tokens": 30},
    order="output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done",
    limit="max_output_tokens",
    cut="max_output_tokens",
    ended="completed",
    called="completed",
    offer=lambda function: {"type": "function", "strict": False, **function},
    choose=lambda name: {"type": "function", "name": name},
    system=[{"instructions": SYSTEM}],
    shapes=[{"input": ASK[0]["content"]}, *({"input": [one]} for one in _parts("input_text"))],
    goes_on=_responses_go_on,
    formed=_response_formed,
    arguments_in=lambda event: event.delta if event.type == "response.function_call_arguments.delta" else "",
)
MESSAGES = Words(
    "/messages",
    lambda probe: probe.anthropic.messages,
    {"messages": ASK},
    of_message,
    of_message_events,
    "msg_",
    {"metadata": {"user_id": "me"}, "service_tier": "auto"},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 30},
    older=("temperature", "top_p", "top_k"),
    order="message_start content_block_start content_block_delta content_block_stop message_delta message_stop",
    cut="max_tokens",
    ended="end_turn",
    called="tool_use",
    stop={"stop_sequences": ["e"]},
    offer=lambda function: {"name": function["name"], "description": function["description"], "input_schema": CITY},
    no_calls={"type": "none"},
    must_call={"type": "any"},
    choose=lambda name: {"type": "tool", "name": name},
    one_call={"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    system=[{"system": SYSTEM}, {"system": [{"type": "text", "text": SYSTEM}]}],
    shapes=[{"messages": [one]} for one in _parts("text")],
    goes_on=_messages_go_on,
    text_in=lambda event: event.get("delta", {}).get("text") or "",
    arguments_in=lambda event: event.delta.partial_json if event.type == "content_block_delta" else "",
)
COMPLETIONS = Words(
    "/completions",
    lambda probe: probe.openai.completions,
    {"prompt": "Colours: red, green,"},
    of_completion,
    of_completion_chunks,
    "cmpl-",
    {"user": "me"},
    stop={"stop": ["e"]},
    counted=USAGE_CHUNK,
)
WORDS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "completions": COMPLETIONS}
