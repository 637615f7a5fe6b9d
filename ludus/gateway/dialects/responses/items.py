"""The items of a response and the names of the events that build one.

Knows: the shapes of items, of a part inside one, of the response around them.  Knows not: when an event is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ludus.episodes.ids import CHAT, RESPONSE, shown_id
from ludus.gateway.dialects.base import Answer, JsonObject, ParsedRequest
from ludus.gateway.dialects.blocks import Block
from ludus.gateway.dialects.fields import names
from ludus.gateway.dialects.openai import tokens_json
from ludus.types import Turn

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_AS_SENT = names("instructions max_output_tokens previous_response_id prompt_cache_key safety_identifier user")


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of item is written."""

    prefix: str
    """Prefix of the item's id."""
    text_event: str
    """Start of the names of its text events; `.delta` and `.done` follow."""
    text_name: str = "text"
    """Field that holds the whole text in the last text event."""
    part_event: str | None = None
    """Start of the names of its part events; `.added` and `.done` follow. None: the item has no parts."""
    part_type: str = ""
    indices: Mapping[str, int] = field(default_factory=dict)
    """The index fields that locate the text in the item."""


_IN_CONTENT = {"content_index": 0}
MESSAGE = Shape("msg", "response.output_text", "text", "response.content_part", "output_text", _IN_CONTENT)
REASONING = Shape("rs", "response.reasoning_text", "text", "response.content_part", "reasoning_text", _IN_CONTENT)
SUMMARY = Shape(
    "rs",
    "response.reasoning_summary_text",
    "text",
    "response.reasoning_summary_part",
    "summary_text",
    {"summary_index": 0},
)
CALL = Shape("fc", "response.function_call_arguments", "arguments")


def shape_of(block: Block, parsed: ParsedRequest) -> Shape:
    if block.kind == "reasoning":
        asked = parsed.repeated.get("reasoning") or {}
        return SUMMARY if asked.get("summary") or asked.get("generate_summary") else REASONING
    return MESSAGE if block.kind == "text" else CALL


def item_id(shape: Shape, turn_id: str, idx: int) -> str:
    return f"{shape.prefix}_{turn_id.removeprefix(CHAT)}_{idx}"


def part_json(shape: Shape, text: str, logprobs: list[JsonObject]) -> JsonObject:
    part: JsonObject = {"type": shape.part_type, "text": text}
    return {**part, "annotations": [], "logprobs": logprobs} if shape is MESSAGE else part


def item_json(shape: Shape, item_id: str, block: Block, status: ItemStatus, logprobs: list[JsonObject]) -> JsonObject:
    """An item; one that is in progress has no parts yet."""
    parts = [] if status == "in_progress" else [part_json(shape, block.text, logprobs)]
    item: JsonObject = {"id": item_id, "status": status}
    if shape is MESSAGE:
        return {**item, "type": "message", "role": "assistant", "content": parts}
    if shape is CALL:
        call = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
        return {**item, "type": "function_call", **call}
    if shape is SUMMARY:
        return {**item, "type": "reasoning", "summary": parts}
    return {**item, "type": "reasoning", "summary": [], "content": parts}


def logprobs_json(turn: Turn, answer: Answer) -> list[JsonObject]:
    """Logprobs of every sampled token. The bytes of a token that is only part of a character are [] here, not null."""
    return [
        {**_with_bytes(token), "top_logprobs": [_with_bytes(likely) for likely in likeliest]}
        for token, likeliest in tokens_json(turn, answer)
    ]


def _with_bytes(token: JsonObject) -> JsonObject:
    return token if token["bytes"] is not None else {**token, "bytes": []}


def status_of(turn: Turn) -> Literal["completed", "incomplete"]:
    return "completed" if turn.sampled.stop_reason == "stop" else "incomplete"


def begun(parsed: ParsedRequest, model_name: str, turn_id: str, created_at: int) -> JsonObject:
    """The response before it has any items."""
    request, repeated = parsed.request, parsed.repeated
    return {
        "id": shown_id(turn_id, RESPONSE),
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "max_tool_calls": None,
        **{name: repeated.get(name) for name in _AS_SENT},
        "metadata": repeated.get("metadata", {}),
        "model": model_name,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "reasoning": {"effort": None, "summary": None, **repeated.get("reasoning", {})},
        "service_tier": "default",
        "temperature": request.sampling.temperature,
        "text": {"format": {"type": "text"}, **repeated.get("text", {})},
        "tool_choice": repeated.get("tool_choice", "auto"),
        "tools": repeated.get("tools", []),
        "top_logprobs": request.sampling.top_logprobs,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def ended(response: JsonObject, answer: Answer, output: list[JsonObject]) -> JsonObject:
    """`response` with its complete items and all that is known at the end."""
    [turn] = answer.turns
    status, num_sampled = status_of(turn), answer.num_sampled_tokens
    details: dict[str, Any] | None = None if status == "completed" else {"reason": "max_output_tokens"}
    usage = {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": turn.sampled.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_sampled,
        # Thinking is not counted separately: its tokens are among the output tokens.
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + num_sampled,
    }
    return {**response, "status": status, "incomplete_details": details, "output": output, "usage": usage}
