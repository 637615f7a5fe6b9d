"""Faults in answers of Chat Completions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from ludus.checks.conformance.faults.base import Fault, on_the_wire
from ludus.checks.conformance.sse import DONE, Event
from ludus.checks.conformance.tamper import Json, OnEvent, Tampering, changed, each_json

PATH = "/chat/completions"


def _body(name: str, says: str, change: Callable[[Json, Json], None], *near: str) -> Fault:
    """A fault in every choice of an answer at once; `change` gets the choice and what was asked."""

    def on_body(body: Json, asked: Json) -> Json:
        for choice in body.get("choices", []):
            change(choice, asked)
        return body

    return on_the_wire(name, says, Tampering(PATH, body=on_body), *near)


def _chunks(name: str, says: str, change: Callable[[Json], Json | None], *near: str) -> Fault:
    """A fault in every chunk of a stream."""
    return on_the_wire(name, says, Tampering(PATH, events=each_json(change)), *near)


def _stream(name: str, says: str, events: Callable[[Json], OnEvent], *near: str) -> Fault:
    return on_the_wire(name, says, Tampering(PATH, events=events), *near)


def _delta(chunk: Json) -> Json:
    """The delta of a chunk's only choice; an empty one where it has none."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta", {})
    assert isinstance(delta, dict)
    return delta


# ---- answers at once


def _drop_second_call(choice: Json, _asked: Json) -> None:
    if choice["message"].get("tool_calls"):
        del choice["message"]["tool_calls"][1:]


def _end_with_stop(choice: Json, _asked: Json) -> None:
    choice["finish_reason"] = "stop" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]


def _shift_logprobs(choice: Json, _asked: Json) -> None:
    entries = (choice.get("logprobs") or {}).get("content") or []
    values = [entry["logprob"] for entry in entries]
    for entry, value in zip(entries, values[1:] + values[:1], strict=True):
        entry["logprob"] = value


def _trim_top_logprobs(choice: Json, _asked: Json) -> None:
    for entry in (choice.get("logprobs") or {}).get("content") or []:
        entry["top_logprobs"] = entry["top_logprobs"][:-1]


def _rewrite_arguments(choice: Json, _asked: Json) -> None:
    for call in choice["message"].get("tool_calls") or []:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))


def _say_stop_string(choice: Json, asked: Json) -> None:
    stop = asked.get("stop")
    if stop and choice["finish_reason"] == "stop":
        choice["message"]["content"] += stop if isinstance(stop, str) else stop[0]


def _strip_text(choice: Json, _asked: Json) -> None:
    choice["message"]["content"] = (choice["message"]["content"] or "").strip() or choice["message"]["content"]


def _null_when_empty(choice: Json, _asked: Json) -> None:
    choice["message"]["content"] = choice["message"]["content"] or None


def _thinking_as_text(choice: Json, _asked: Json) -> None:
    thought = choice["message"].pop("reasoning_content", None)
    if thought:
        choice["message"]["content"] = f"{thought}{choice['message']['content'] or ''}"


def _swallow_broken_call(choice: Json, _asked: Json) -> None:
    if "<tool_call>" in (choice["message"]["content"] or ""):
        choice["message"]["content"] = ""


def _same_index(choice: Json, _asked: Json) -> None:
    choice["index"] = 0


def _usage_off_by_one(body: Json, _asked: Json) -> Json:
    if "usage" in body:
        body["usage"]["completion_tokens"] += 1
        body["usage"]["total_tokens"] += 1
    return body


def _one_id(body: Json, _asked: Json) -> Json:
    return {**body, "id": "chatcmpl-1"} if "choices" in body else body


# ---- streams


def _merge_deltas(_asked: Json) -> OnEvent:
    held: list[str] = []

    def on_event(event: Event) -> Sequence[Event]:
        if event.data == DONE:
            return [event]
        chunk = event.json
        if _delta(chunk).get("content"):
            held.append(chunk["choices"][0]["delta"]["content"])
            return []
        if held and chunk.get("choices") and chunk["choices"][0].get("finish_reason"):
            first = copy.deepcopy(chunk)
            first["choices"][0] |= {"delta": {"content": "".join(held)}, "finish_reason": None}
            held.clear()
            return [changed(event, first), event]
        return [event]

    return on_event


def _swap_deltas(_asked: Json) -> OnEvent:
    held: list[Event] = []

    def on_event(event: Event) -> Sequence[Event]:
        has_text = event.data != DONE and bool(_delta(event.json).get("content"))
        if has_text and not held:
            held.append(event)
            return []
        told = [event, *held]
        held.clear()
        return told if has_text else [*told[1:], event]

    return on_event


def _split_characters(chunk: Json) -> Json:
    text = _delta(chunk).get("content")
    if text and not text.isascii():
        _delta(chunk)["content"] = "".join(char if char.isascii() else "\ufffd" * len(char.encode()) for char in text)
    return chunk


def _say_twice(_asked: Json) -> OnEvent:
    num_told = 0

    def on_event(event: Event) -> Sequence[Event]:
        nonlocal num_told
        if event.data == DONE or not _delta(event.json).get("content"):
            return [event]
        num_told += 1
        return [event, event] if num_told == 2 else [event]

    return on_event


def _no_done(_asked: Json) -> OnEvent:
    return lambda event: [] if event.data == DONE else [event]


def _no_role(chunk: Json) -> Json | None:
    return None if "role" in _delta(chunk) else chunk


def _calls_at_index_0(chunk: Json) -> Json:
    for part in _delta(chunk).get("tool_calls") or []:
        part["index"] = 0
    return chunk


def _stream_without_second_call(chunk: Json) -> Json | None:
    parts = _delta(chunk).get("tool_calls") or []
    return None if any(part["index"] > 0 for part in parts) else chunk


def _merge_arguments(_asked: Json) -> OnEvent:
    held: dict[int, str] = {}

    def on_event(event: Event) -> Sequence[Event]:
        if event.data == DONE:
            return [event]
        chunk = event.json
        parts: list[Any] = _delta(chunk).get("tool_calls") or []
        if parts and "id" not in parts[0]:
            held[parts[0]["index"]] = held.get(parts[0]["index"], "") + parts[0]["function"]["arguments"]
            return []
        if not held or not chunk.get("choices") or not chunk["choices"][0].get("finish_reason"):
            return [event]
        whole = copy.deepcopy(chunk)
        calls = [{"index": at, "function": {"arguments": text}} for at, text in held.items()]
        whole["choices"][0] |= {"delta": {"tool_calls": calls}, "finish_reason": None}
        return [changed(event, whole), event]

    return on_event


def _fresh_ids(_asked: Json) -> OnEvent:
    num_told = 0

    def on_event(event: Event) -> Sequence[Event]:
        nonlocal num_told
        num_told += 1
        return [event] if event.data == DONE else [changed(event, {**event.json, "id": f"chatcmpl-{num_told}"})]

    return on_event


def _no_usage_chunk(chunk: Json) -> Json | None:
    return chunk if chunk.get("choices") else None


def _no_end(chunk: Json) -> Json:
    for choice in chunk.get("choices", []):
        choice["finish_reason"] = None
    return chunk


CHAT_FAULTS = (
    _body("second call dropped", "of several calls only the first is told", _drop_second_call, "chat/tools"),
    _body("stop instead of tool_calls", "an answer with calls ends with stop", _end_with_stop, "chat/tools"),
    _body("logprob of another token", "logprobs stand one token further", _shift_logprobs, "chat/logprobs"),
    _body("likeliest tokens cut", "top_logprobs has one entry too few", _trim_top_logprobs, "chat/logprobs"),
    _body("arguments written anew", "arguments are parsed and serialised", _rewrite_arguments, "chat/tools"),
    _body("stop string said", "the stop string stays in the text", _say_stop_string, "chat/stop"),
    _body("text stripped", "blanks around the text are lost", _strip_text, "chat/text"),
    _body("null for no text", "an empty answer is null", _null_when_empty, "chat/text"),
    _body("thinking as text", "thinking stands in the content", _thinking_as_text, "chat/reasoning"),
    _body("broken call swallowed", "a call that cannot be decoded is lost", _swallow_broken_call, "chat/tools"),
    _body("choices not numbered", "every choice has index 0", _same_index, "chat/n"),
    on_the_wire(
        "usage off by one",
        "one completion token too many is counted",
        Tampering(PATH, body=_usage_off_by_one),
        "chat/text",
    ),
    on_the_wire("one id for all", "every answer has the same id", Tampering(PATH, body=_one_id), "chat/text"),
    _stream("deltas merged", "the whole text comes in one delta at the end", _merge_deltas, "chat/streaming"),
    _stream("deltas swapped", "two deltas change places", _swap_deltas, "chat/streaming"),
    _stream("a delta told twice", "the second delta comes twice", _say_twice, "chat/streaming"),
    _chunks("characters split", "a character of several bytes is broken", _split_characters, "chat/unicode"),
    _stream("no [DONE]", "a stream ends without its mark", _no_done, "chat/streaming"),
    _chunks("no role", "the chunk with the role is missing", _no_role, "chat/streaming"),
    _chunks("no finish_reason", "no chunk says why the answer ended", _no_end, "chat/streaming"),
    _chunks("calls not numbered", "every streamed call has index 0", _calls_at_index_0, "chat/tools"),
    _chunks(
        "second streamed call dropped",
        "of several calls only the first streams",
        _stream_without_second_call,
        "chat/tools",
    ),
    _stream("arguments merged", "arguments come in one piece at the end", _merge_arguments, "chat/tools"),
    _stream("an id a chunk", "every chunk has an id of its own", _fresh_ids, "chat/streaming"),
    _chunks("no usage chunk", "include_usage is not acted on", _no_usage_chunk, "chat/streaming"),
)
