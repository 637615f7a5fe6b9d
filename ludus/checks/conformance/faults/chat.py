"""Faults in answers of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ludus.checks.conformance.faults.base import answer, answers, event, events, wire, without
from ludus.checks.conformance.rewrite import Json, OnEvent, changed, find, numbered, put, text_of
from ludus.checks.conformance.sse import DONE, Event

MESSAGE, DELTA, END = "choices.*.message", "choices.*.delta", "choices.*.finish_reason"
TEXT, CALLS = f"{MESSAGE}.content", f"{MESSAGE}.tool_calls"
ROLE, PIECE = f"{DELTA}.role", f"{DELTA}.content"
INDEX, ARGUMENTS = f"{DELTA}.tool_calls.*.index", f"{DELTA}.tool_calls.*.function.arguments"


@answers("second call dropped", "chat/tools", CALLS)
def second_call_dropped(calls: Any) -> Any:
    """Of several calls only the first is sent."""
    return calls and calls[:1]


@answers("stop instead of tool_calls", "chat/tools", END)
def stop_instead_of_tool_calls(end: Any) -> Any:
    """An answer with calls ends with stop."""
    return "stop" if end == "tool_calls" else end


@answers("logprob of another token", "chat/logprobs", "choices.*.logprobs.content")
def logprob_of_another_token(entries: list[Json] | None) -> list[Json] | None:
    """Logprobs stand one token further."""
    values = [entry["logprob"] for entry in entries or ()]
    moved = zip(entries or (), values[1:] + values[:1], strict=True)
    return entries and [{**entry, "logprob": value} for entry, value in moved]


@answers("likeliest tokens cut", "chat/logprobs", "choices.*.logprobs.content.*.top_logprobs")
def likeliest_tokens_cut(top: Any) -> Any:
    """Top_logprobs has one entry too few."""
    return top[:-1]


@answers("arguments written anew", "chat/tools", f"{CALLS}.*.function.arguments")
def arguments_written_anew(text: Any) -> Any:
    """Arguments are parsed and serialised."""
    return json.dumps(json.loads(text))


@answers("text stripped", "chat/text", TEXT)
def text_stripped(text: Any) -> Any:
    """Blanks around the text are lost."""
    return (text or "").strip() or text


@answers("null for no text", "chat/text", TEXT)
def null_for_no_text(text: Any) -> Any:
    """An empty answer is null."""
    return text or None


@answers("broken call swallowed", "chat/tools", TEXT)
def broken_call_swallowed(text: Any) -> Any:
    """A call that cannot be decoded is lost."""
    return "" if "<tool_call>" in (text or "") else text


@answers("thinking as text", "chat/reasoning", MESSAGE)
def thinking_as_text(message: Json) -> Json:
    """Thinking stands in the content."""
    thought = message.pop("reasoning_content", None)
    return {**message, "content": f"{thought}{message['content'] or ''}"} if thought else message


@answers("usage off by one", "chat/text", "usage")
def usage_off_by_one(usage: Json) -> Json:
    """One completion token too many is counted."""
    return {name: count + (name in ("completion_tokens", "total_tokens")) for name, count in usage.items()}


@events("characters split", "chat/unicode", PIECE)
def characters_split(text: str | None) -> str | None:
    """A character of several bytes is broken."""
    return text and "".join(char if char.isascii() else "\ufffd" * len(char.encode()) for char in text)


def _stop_string_added(body: Json, asked: Json) -> Json:
    stop = asked.get("stop")
    for choice in body.get("choices", ()):
        if stop and choice["finish_reason"] == "stop":
            choice["message"]["content"] += stop if isinstance(stop, str) else stop[0]
    return body


def _has(at: str) -> Callable[[Json], bool]:
    """Something is at the path that is neither nothing nor 0."""
    return lambda chunk: any(holder[key] for holder, key in find(chunk, at))


# ---- streams


def _merged(at: str) -> Callable[[Json], OnEvent]:
    """Pieces of text at a path are kept until another event comes, and are one there."""

    def on_stream(_asked: Json) -> OnEvent:
        held: list[Event] = []

        def on_event(event: Event) -> Sequence[Event]:
            if text_of(event, at):
                held.append(event)
                return []
            whole = "".join(text_of(piece, at) for piece in held)
            whole_piece = [changed(piece, put(at, whole)(piece.json)) for piece in held[-1:]]
            held.clear()
            return [*whole_piece, event]

        return on_event

    return on_stream


def _swapped(_asked: Json) -> OnEvent:
    held: list[Event] = []

    def on_event(event: Event) -> Sequence[Event]:
        has_text = bool(text_of(event, PIECE))
        if has_text and not held:
            held.append(event)
            return []
        released = [event, *held] if has_text else [*held, event]
        held.clear()
        return released

    return on_event


SENT_TWICE = numbered(lambda event, number: [event, event] if number == 2 else [event], PIECE)
FRESH_IDS = numbered(lambda event, number: [changed(event, {**event.json, "id": f"chatcmpl-{number}"})], "id")


def _no_done(_asked: Json) -> OnEvent:
    return lambda event: [] if event.data == DONE else [event]


CHAT_FAULTS = (
    answer("choices not numbered", "every choice has index 0", "chat/n", "choices.*.index", 0),
    answer("one id for all", "every answer has the same id", "chat/text", "id", "chatcmpl-1"),
    event("no finish_reason", "no chunk has the reason of the end", "chat/streaming", END, None),
    event("calls not numbered", "every streamed call has index 0", "chat/tools", INDEX, 0),
    without("no role", "the chunk with the role is missing", "chat/streaming", _has(ROLE)),
    without("second streamed call dropped", "only the first call streams", "chat/tools", _has(INDEX)),
    without("no usage chunk", "include_usage does nothing", "chat/streaming", lambda chunk: not chunk.get("choices")),
    wire("stop string sent", "the stop string stays in the text", "chat/stop", body=_stop_string_added),
    wire("deltas merged", "the whole text comes in one delta at the end", "chat/streaming", events=_merged(PIECE)),
    wire("deltas swapped", "two deltas are swapped", "chat/streaming", events=_swapped),
    wire("a delta sent twice", "the second delta comes twice", "chat/streaming", events=SENT_TWICE),
    wire("no [DONE]", "a stream ends without its mark", "chat/streaming", events=_no_done),
    wire("arguments merged", "arguments come in one piece at the end", "chat/tools", events=_merged(ARGUMENTS)),
    wire("an id a chunk", "every chunk has an id of its own", "chat/streaming", events=FRESH_IDS),
)
