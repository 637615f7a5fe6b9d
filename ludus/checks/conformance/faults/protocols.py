"""Faults in answers of Responses and Messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.checks.conformance.faults.base import answer, answers, event, events, unread, wire, without
from ludus.checks.conformance.rewrite import Json, changed, numbered
from ludus.checks.conformance.sse import Event

PREVIOUS = "previous_response_id"
LAST = ("response.completed", "response.incomplete")


def _gap(old: Event, number: int) -> list[Event]:
    value = old.json
    return [changed(old, {**value, "sequence_number": value["sequence_number"] + (number > 3)})]


GAP = numbered(_gap, "type")


def _openai_error(body: Json, _asked: Json) -> Json:
    return {"error": body["error"]} if body.get("type") == "error" else body


def _begins(kind: str) -> Callable[[Json], bool]:
    return lambda event: event["type"].startswith(kind)


def _is_signature(event: Json) -> bool:
    return bool(event.get("delta", {}).get("type") == "signature_delta")


@events("done without its end", "responses/streaming", "text", "response.output_text.done")
def done_without_its_end(text: Any) -> Any:
    """Output_text.done lacks a character."""
    return text[:-1]


@answers("end_turn instead of tool_use", "messages/tools", "stop_reason")
def end_turn_instead_of_tool_use(end: Any) -> Any:
    """A message with calls ends its turn."""
    return "end_turn" if end == "tool_use" else end


@answers("count off by one", "messages/count_tokens", "input_tokens", path="/count_tokens")
def count_off_by_one(count: int) -> int:
    """count_tokens counts one too many."""
    return count + 1


@events("delta in the next block", "messages/stream", "index", "content_block_delta")
def delta_in_the_next_block(index: Any) -> Any:
    """Index of content_block_delta is one too high."""
    return index + 1


PROTOCOL_FAULTS = (
    event("every item at index 0", "output_index is always 0", "responses/tools", "output_index", 0),
    event("empty at the end", "the last response has no items", "responses/streaming", "response.output", [], *LAST),
    event("completed though cut", "a cut response ends with completed", "responses/limits", "type", LAST[0], LAST[1]),
    event("no output tokens", "message_delta counts nothing", "messages/streaming", "usage.output_tokens", 0),
    answer("no stop sequence", "stop_sequence is null", "messages/stop", "stop_sequence", None),
    without("no part events", "parts are not opened", "responses/streaming", _begins("response.content_part")),
    without("no message_stop", "a stream lacks its last event", "messages/streaming", _begins("message_stop")),
    without("no content_block_stop", "blocks are not closed", "messages/streaming", _begins("content_block_stop")),
    without("thinking not signed", "signature_delta is missing", "messages/reasoning", _is_signature),
    wire("gap in sequence_number", "an event's number is left out", "responses/streaming", events=GAP),
    wire("another protocol's error", "errors are those of OpenAI", "messages/errors", body=_openai_error),
    unread("previous response forgotten", f"{PREVIOUS} is not read", PREVIOUS, "responses/records"),
    unread("system not read", "the system text is dropped", "system", "messages/text"),
)
