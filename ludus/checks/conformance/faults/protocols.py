"""Faults in answers of Responses and Messages."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance.faults.base import answers, events, on_the_wire, unread, without
from ludus.checks.conformance.rewrite import Json, Rewrite, changed, numbered, put
from ludus.checks.conformance.sse import Event


def _gap(event: Event, number: int) -> list[Event]:
    value = event.json
    return [changed(event, {**value, "sequence_number": value["sequence_number"] + (number > 3)})]


def _openai_error(body: Json, _asked: Json) -> Json:
    return {"error": body["error"]} if body.get("type") == "error" else body


@events("every item in place 0", "responses/tools", "output_index")
def every_item_in_place_0(_: Any) -> Any:
    """Output_index is always 0."""
    return 0


@events("done without its end", "responses/streaming", "text", "response.output_text.done")
def done_without_its_end(text: Any) -> Any:
    """Output_text.done lacks a character."""
    return text[:-1]


@without("no part events", "responses/streaming")
def no_part_events(event: Json) -> object:
    """Content_part events are missing."""
    return event["type"].startswith("response.content_part")


@events("empty at the end", "responses/streaming", "response.output", "response.completed", "response.incomplete")
def empty_at_the_end(_: Any) -> Any:
    """The last event's response has no items."""
    return []


@events("completed though cut", "responses/limits", "type", "response.incomplete")
def completed_though_cut(_: Any) -> Any:
    """An incomplete response ends with completed."""
    return "response.completed"


@events("delta in the next block", "messages/stream", "index", "content_block_delta")
def delta_in_the_next_block(index: Any) -> Any:
    """Index of content_block_delta is one too high."""
    return index + 1


@without("no message_stop", "messages/streaming")
def no_message_stop(event: Json) -> object:
    """A stream lacks its last event."""
    return event["type"] == "message_stop"


@without("no content_block_stop", "messages/streaming")
def no_content_block_stop(event: Json) -> object:
    """Blocks are not closed."""
    return event["type"] == "content_block_stop"


@events("no output tokens", "messages/streaming", "usage.output_tokens", "message_delta")
def no_output_tokens(_: Any) -> Any:
    """Message_delta counts nothing."""
    return 0


@without("thinking not signed", "messages/reasoning")
def thinking_not_signed(event: Json) -> object:
    """Signature_delta is missing."""
    return event.get("delta", {}).get("type") == "signature_delta"


@answers("end_turn instead of tool_use", "messages/tools", "stop_reason")
def end_turn_instead_of_tool_use(end: Any) -> Any:
    """A message with calls ends its turn."""
    return "end_turn" if end == "tool_use" else end


@answers("stop sequence not told", "messages/stop", "stop_sequence")
def stop_sequence_not_told(_: Any) -> Any:
    """Stop_sequence is null."""
    return None


PROTOCOL_FAULTS = (
    on_the_wire(
        "gap in sequence_number",
        "an event's number is left out",
        Rewrite("/responses", events=numbered(_gap, lambda _: True)),
        "responses/streaming",
    ),
    unread(
        "previous response forgotten", "previous_response_id is not read", "previous_response_id", "responses/records"
    ),
    on_the_wire(
        "count off by one",
        "count_tokens counts one too many",
        Rewrite("/count_tokens", body=put("input_tokens", lambda count: count + 1)),
        "messages/count_tokens",
    ),
    unread("system not read", "the system text is dropped", "system", "messages/text"),
    on_the_wire(
        "another protocol's error",
        "Messages answers with OpenAI's error",
        Rewrite("/messages", body=_openai_error),
        "messages/errors",
    ),
)
