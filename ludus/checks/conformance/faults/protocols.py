"""Faults in answers of Responses and Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ludus.checks.conformance.faults.base import Fault, on_the_wire
from ludus.checks.conformance.sse import Event
from ludus.checks.conformance.tamper import Json, OnEvent, Tampering, changed, each_json

RESPONSES = "/responses"
MESSAGES = "/messages"


def _response(name: str, says: str, change: Callable[[Json], Json | None], *near: str) -> Fault:
    return on_the_wire(name, says, Tampering(RESPONSES, events=each_json(change)), *near)


def _message(name: str, says: str, change: Callable[[Json], Json | None], *near: str) -> Fault:
    return on_the_wire(name, says, Tampering(MESSAGES, events=each_json(change)), *near)


def _gap(_asked: Json) -> OnEvent:
    num_told = 0

    def on_event(event: Event) -> Sequence[Event]:
        nonlocal num_told
        value = event.json
        num_told += 1
        return [changed(event, {**value, "sequence_number": value["sequence_number"] + (num_told > 3)})]

    return on_event


def _first_item_only(event: Json) -> Json:
    return {**event, "output_index": 0} if "output_index" in event else event


def _short_done(event: Json) -> Json:
    return {**event, "text": event["text"][:-1]} if event["type"] == "response.output_text.done" else event


def _no_part_events(event: Json) -> Json | None:
    return None if event["type"].startswith("response.content_part") else event


def _empty_end(event: Json) -> Json:
    if event["type"] in ("response.completed", "response.incomplete"):
        event["response"]["output"] = []
    return event


def _completed(event: Json) -> Json:
    return {**event, "type": "response.completed"} if event["type"] == "response.incomplete" else event


def _no_previous(asked: Json) -> Json:
    return {name: value for name, value in asked.items() if name != "previous_response_id"}


def _next_index(event: Json) -> Json:
    return {**event, "index": event["index"] + 1} if event["type"] == "content_block_delta" else event


def _no_stop(event: Json) -> Json | None:
    return None if event["type"] == "message_stop" else event


def _no_block_stop(event: Json) -> Json | None:
    return None if event["type"] == "content_block_stop" else event


def _no_output_tokens(event: Json) -> Json:
    if event["type"] == "message_delta":
        event["usage"]["output_tokens"] = 0
    return event


def _unsigned(event: Json) -> Json | None:
    return None if event.get("delta", {}).get("type") == "signature_delta" else event


def _end_turn(body: Json, _asked: Json) -> Json:
    return {**body, "stop_reason": "end_turn"} if body.get("stop_reason") == "tool_use" else body


def _no_stop_sequence(body: Json, _asked: Json) -> Json:
    return {**body, "stop_sequence": None} if "stop_sequence" in body else body


def _one_more(body: Json, _asked: Json) -> Json:
    return {**body, "input_tokens": body["input_tokens"] + 1} if "input_tokens" in body else body


def _no_system(asked: Json) -> Json:
    return {name: value for name, value in asked.items() if name != "system"}


def _openai_error(body: Json, _asked: Json) -> Json:
    return {"error": body["error"]} if body.get("type") == "error" else body


PROTOCOL_FAULTS = (
    on_the_wire(
        "gap in sequence_number",
        "an event's number is left out",
        Tampering(RESPONSES, events=_gap),
        "responses/streaming",
    ),
    _response("every item in place 0", "output_index is always 0", _first_item_only, "responses/tools"),
    _response("done without its end", "output_text.done lacks a character", _short_done, "responses/streaming"),
    _response("no part events", "content_part events are missing", _no_part_events, "responses/streaming"),
    _response("empty at the end", "the last event's response has no items", _empty_end, "responses/streaming"),
    _response("completed though cut", "an incomplete response ends with completed", _completed, "responses/limits"),
    on_the_wire(
        "previous response forgotten",
        "previous_response_id is not read",
        Tampering(RESPONSES, request=_no_previous),
        "responses/records",
    ),
    _message("delta in the next block", "index of content_block_delta is one too high", _next_index, "messages/stream"),
    _message("no message_stop", "a stream lacks its last event", _no_stop, "messages/streaming"),
    _message("no content_block_stop", "blocks are not closed", _no_block_stop, "messages/streaming"),
    _message("no output tokens", "message_delta counts nothing", _no_output_tokens, "messages/streaming"),
    _message("thinking not signed", "signature_delta is missing", _unsigned, "messages/reasoning"),
    on_the_wire(
        "end_turn instead of tool_use",
        "a message with calls ends its turn",
        Tampering(MESSAGES, body=_end_turn),
        "messages/tools",
    ),
    on_the_wire(
        "stop sequence not told",
        "stop_sequence is null",
        Tampering(MESSAGES, body=_no_stop_sequence),
        "messages/stop",
    ),
    on_the_wire(
        "count off by one",
        "count_tokens counts one too many",
        Tampering("/count_tokens", body=_one_more),
        "messages/count_tokens",
    ),
    on_the_wire(
        "system not read", "the system text is dropped", Tampering(MESSAGES, request=_no_system), "messages/text"
    ),
    on_the_wire(
        "another protocol's error",
        "Messages answers with OpenAI's error",
        Tampering(MESSAGES, body=_openai_error),
        "messages/errors",
    ),
)
