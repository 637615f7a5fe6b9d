"""Faults in answers of Chat Completions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from ludus.checks.conformance.faults.base import Fault, answers, events, on_the_wire, without
from ludus.checks.conformance.rewrite import Json, OnEvent, Rewrite, changed, numbered
from ludus.checks.conformance.sse import DONE, Event

PATH = "/chat/completions"
MESSAGE = "choices.*.message"


def _delta(chunk: Json) -> Json:
    """The delta of a chunk's only choice; an empty one where it has none."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta", {})
    assert isinstance(delta, dict)
    return delta


def _calls(chunk: Json) -> list[Any]:
    return _delta(chunk).get("tool_calls") or []


def _has_text(event: Event) -> object:
    return event.data != DONE and _delta(event.json).get("content")


# ---- answers at once


def _say_stop_string(body: Json, asked: Json) -> Json:
    stop = asked.get("stop")
    for choice in body.get("choices", ()):
        if stop and choice["finish_reason"] == "stop":
            choice["message"]["content"] += stop if isinstance(stop, str) else stop[0]
    return body


# ---- streams


def _merged(piece_of: Callable[[Json], Any], delta_of: Callable[[list[Any]], Json]) -> Callable[[Json], OnEvent]:
    """Pieces are kept until the end, and are one delta there."""

    def on_stream(_asked: Json) -> OnEvent:
        held: list[Any] = []

        def on_event(event: Event) -> Sequence[Event]:
            if event.data == DONE:
                return [event]
            chunk = event.json
            if piece_of(chunk):
                held.append(piece_of(chunk))
                return []
            if not held or not chunk.get("choices") or not chunk["choices"][0].get("finish_reason"):
                return [event]
            whole = copy.deepcopy(chunk)
            whole["choices"][0] |= {"delta": delta_of(held), "finish_reason": None}
            held.clear()
            return [changed(event, whole), event]

        return on_event

    return on_stream


def _one_text(texts: list[str]) -> Json:
    return {"content": "".join(texts)}


def _argument(chunk: Json) -> Json | None:
    calls = _calls(chunk)
    return calls[0] if calls and "id" not in calls[0] else None


def _whole_arguments(parts: list[Json]) -> Json:
    texts: dict[int, str] = {}
    for part in parts:
        texts[part["index"]] = texts.get(part["index"], "") + part["function"]["arguments"]
    return {"tool_calls": [{"index": at, "function": {"arguments": text}} for at, text in texts.items()]}


def _swap_deltas(_asked: Json) -> OnEvent:
    held: list[Event] = []

    def on_event(event: Event) -> Sequence[Event]:
        has_text = bool(_has_text(event))
        if has_text and not held:
            held.append(event)
            return []
        told = [event, *held]
        held.clear()
        return told if has_text else [*told[1:], event]

    return on_event


def _stream(name: str, says: str, on_stream: Callable[[Json], OnEvent], near: str) -> Fault:
    return on_the_wire(name, says, Rewrite(PATH, events=on_stream), near)


SAY_TWICE = numbered(lambda event, number: [event, event] if number == 2 else [event], _has_text)
FRESH_IDS = numbered(
    lambda event, number: [changed(event, {**event.json, "id": f"chatcmpl-{number}"})], lambda event: event.data != DONE
)


@answers("second call dropped", "chat/tools", f"{MESSAGE}.tool_calls")
def second_call_dropped(calls: Any) -> Any:
    """Of several calls only the first is sent."""
    return calls and calls[:1]


@answers("stop instead of tool_calls", "chat/tools", "choices.*.finish_reason")
def stop_instead_of_tool_calls(end: Any) -> Any:
    """An answer with calls ends with stop."""
    return "stop" if end == "tool_calls" else end


@answers("logprob of another token", "chat/logprobs", "choices.*.logprobs.content")
def logprob_of_another_token(entries: list[Json] | None) -> list[Json] | None:
    """Logprobs stand one token further."""
    values = [entry["logprob"] for entry in entries or ()]
    return entries and [
        {**entry, "logprob": value} for entry, value in zip(entries, values[1:] + values[:1], strict=True)
    ]


@answers("likeliest tokens cut", "chat/logprobs", "choices.*.logprobs.content.*.top_logprobs")
def likeliest_tokens_cut(top: Any) -> Any:
    """Top_logprobs has one entry too few."""
    return top[:-1]


@answers("arguments written anew", "chat/tools", f"{MESSAGE}.tool_calls.*.function.arguments")
def arguments_written_anew(text: Any) -> Any:
    """Arguments are parsed and serialised."""
    return json.dumps(json.loads(text))


@answers("text stripped", "chat/text", f"{MESSAGE}.content")
def text_stripped(text: Any) -> Any:
    """Blanks around the text are lost."""
    return (text or "").strip() or text


@answers("null for no text", "chat/text", f"{MESSAGE}.content")
def null_for_no_text(text: Any) -> Any:
    """An empty answer is null."""
    return text or None


@answers("thinking as text", "chat/reasoning", MESSAGE)
def thinking_as_text(message: Json) -> Json:
    """Thinking stands in the content."""
    thought = message.pop("reasoning_content", None)
    return {**message, "content": f"{thought}{message['content'] or ''}"} if thought else message


@answers("broken call swallowed", "chat/tools", f"{MESSAGE}.content")
def broken_call_swallowed(text: Any) -> Any:
    """A call that cannot be decoded is lost."""
    return "" if "<tool_call>" in (text or "") else text


@answers("choices not numbered", "chat/n", "choices.*.index")
def choices_not_numbered(_: Any) -> Any:
    """Every choice has index 0."""
    return 0


@answers("usage off by one", "chat/text", "usage")
def usage_off_by_one(usage: Json) -> Json:
    """One completion token too many is counted."""
    return {name: count + (name in ("completion_tokens", "total_tokens")) for name, count in usage.items()}


@answers("one id for all", "chat/text", "id")
def one_id_for_all(_: Any) -> Any:
    """Every answer has the same id."""
    return "chatcmpl-1"


@events("characters split", "chat/unicode", "choices.*.delta.content")
def characters_split(text: str | None) -> str | None:
    """A character of several bytes is broken."""
    return text and "".join(char if char.isascii() else "\ufffd" * len(char.encode()) for char in text)


@without("no role", "chat/streaming")
def no_role(chunk: Json) -> object:
    """The chunk with the role is missing."""
    return "role" in _delta(chunk)


@events("no finish_reason", "chat/streaming", "choices.*.finish_reason")
def no_finish_reason(_: Any) -> Any:
    """No chunk says why the answer ended."""
    return None


@events("calls not numbered", "chat/tools", "choices.*.delta.tool_calls.*.index")
def calls_not_numbered(_: Any) -> Any:
    """Every streamed call has index 0."""
    return 0


@without("second streamed call dropped", "chat/tools")
def second_streamed_call_dropped(chunk: Json) -> object:
    """Of several calls only the first streams."""
    return any(part["index"] > 0 for part in _calls(chunk))


@without("no usage chunk", "chat/streaming")
def no_usage_chunk(chunk: Json) -> object:
    """Include_usage is not acted on."""
    return not chunk.get("choices")


CHAT_FAULTS = (
    on_the_wire(
        "stop string said", "the stop string stays in the text", Rewrite(PATH, body=_say_stop_string), "chat/stop"
    ),
    _stream(
        "deltas merged",
        "the whole text comes in one delta at the end",
        _merged(lambda chunk: _delta(chunk).get("content"), _one_text),
        "chat/streaming",
    ),
    _stream("deltas swapped", "two deltas change places", _swap_deltas, "chat/streaming"),
    _stream("a delta told twice", "the second delta comes twice", SAY_TWICE, "chat/streaming"),
    _stream(
        "no [DONE]",
        "a stream ends without its mark",
        lambda _: lambda event: [] if event.data == DONE else [event],
        "chat/streaming",
    ),
    _stream(
        "arguments merged", "arguments come in one piece at the end", _merged(_argument, _whole_arguments), "chat/tools"
    ),
    _stream("an id a chunk", "every chunk has an id of its own", FRESH_IDS, "chat/streaming"),
)
