"""A message, as one body or as events: blocks open, grow and close one after the other.

Knows: the shapes of the protocol.  Knows not: how a request is read.
"""

from __future__ import annotations

import json

from ludus.episodes.ids import MESSAGE, shown_id
from ludus.gateway.dialects.base import Answer, ErrorReply, JsonObject, ParsedRequest
from ludus.gateway.dialects.blocks import Block, BlockEvent, BlockStream, Grown, Opened, reply_deltas, whole_blocks
from ludus.gateway.dialects.events import event
from ludus.text.parsers.base import Delta
from ludus.types import Turn

ERROR_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
SERVER_ERROR = 500
TURN_NOT_FOUND = "turn_not_found"


def error_json(error: ErrorReply) -> JsonObject:
    """The protocol's error; code and param, which it does not define, are added beside its two fields."""
    kind = "api_error" if error.status >= SERVER_ERROR else ERROR_KINDS.get(error.status, "invalid_request_error")
    inside: JsonObject = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    if error.code == TURN_NOT_FOUND:
        # The SDK recognises by these words that it must send the whole history.
        inside |= {"param": "thread.previous_message_id", "details": {"error_code": "thread_not_found"}}
    return {"type": "error", "error": inside}


def model_json(name: str) -> JsonObject:
    shown = {"display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    return {"type": "model", "id": name, **shown}


def models_json(models: list[JsonObject]) -> JsonObject:
    return {"data": models, "has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}


def whole(answer: Answer, parsed: ParsedRequest, model_name: str) -> JsonObject:
    """The body of an answer that is not streamed."""
    [turn] = answer.turns
    blocks = whole_blocks(reply_deltas(turn.reply, answer.deltas))
    return {
        **_head(turn.id, model_name),
        "content": [_block_json(block, turn.id) for block in blocks],
        **_stop(turn, parsed),
        "usage": _usage(answer),
    }


class MessageStream:
    """The events of one streamed message."""

    def __init__(self, parsed: ParsedRequest, model_name: str) -> None:
        self._parsed = parsed
        self._model_name = model_name
        self._turn_id = ""
        self._blocks = BlockStream()
        self._open = Block("text")

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes:
        self._turn_id = turn_ids[0]
        usage = _counts(num_prompt_tokens, num_cached=0, num_sampled=0)
        stop = {"stop_reason": None, "stop_sequence": None}
        message = {**_head(self._turn_id, self._model_name), "content": [], **stop, "usage": usage}
        return _event("message_start", message=message) + _event("ping")

    def delta(self, choice_idx: int, delta: Delta) -> bytes:
        return b"".join([self._step(step) for step in self._blocks.feed(delta)])

    def finish(self, answer: Answer) -> bytes:
        [turn] = answer.turns
        # A retry may be answered with the first attempt's turn, for which there are no deltas to send again.
        late = () if self._blocks.has_begun else reply_deltas(turn.reply, ())
        events = [self.delta(0, delta) for delta in late]
        events += [self._step(step) for step in self._blocks.finish()]
        events.append(_event("message_delta", delta=_stop(turn, self._parsed), usage=_usage(answer)))
        return b"".join([*events, _event("message_stop")])

    def error(self, error: ErrorReply) -> bytes:
        return event(error_json(error), "error")

    def _step(self, step: BlockEvent) -> bytes:
        if isinstance(step, Opened):
            self._open = step.block
            block = _block_json(step.block, "")
            return _event("content_block_start", index=step.idx, content_block=block)
        if isinstance(step, Grown):
            return _event("content_block_delta", index=step.idx, delta=_delta_json(self._open, step.text))
        signed = b""
        if step.block.kind == "reasoning":
            signature = {"type": "signature_delta", "signature": _signature(self._turn_id)}
            signed = _event("content_block_delta", index=step.idx, delta=signature)
        return signed + _event("content_block_stop", index=step.idx)


def _event(kind: str, **fields: object) -> bytes:
    return event({"type": kind, **fields}, kind)


def _head(turn_id: str, model_name: str) -> JsonObject:
    return {"id": shown_id(turn_id, MESSAGE), "type": "message", "role": "assistant", "model": model_name}


def _block_json(block: Block, turn_id: str) -> JsonObject:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": _signature(turn_id) if turn_id else ""}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    # Opened blocks have no arguments yet.
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": json.loads(block.text or "{}")}


def _delta_json(block: Block, text: str) -> JsonObject:
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _signature(turn_id: str) -> str:
    """A made-up signature: clients drop unsigned thinking, and none checks the signature."""
    return shown_id(turn_id, "")


def _stop(turn: Turn, parsed: ParsedRequest) -> JsonObject:
    sampled = turn.sampled
    # An answer may also be stopped behind its first call, by a string that nobody asked for.
    stopped_by = sampled.stop_string if sampled.stop_string in parsed.request.sampling.stop else None
    if sampled.stop_reason != "stop":
        reason = "max_tokens"
    elif turn.reply.tool_calls:
        reason = "tool_use"
    else:
        reason = "end_turn" if stopped_by is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stopped_by if reason == "stop_sequence" else None}


def _usage(answer: Answer) -> JsonObject:
    num_cached = answer.turns[0].sampled.num_cached_tokens
    return _counts(answer.num_prompt_tokens, num_cached=num_cached, num_sampled=answer.num_sampled_tokens)


def _counts(num_prompt: int, *, num_cached: int, num_sampled: int) -> JsonObject:
    """Token counts. In this protocol the input tokens do not include the cached ones."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_sampled,
    }
