"""A response, as one body or as events: items open, grow and close, and the last event holds them all.

Knows: the order of events.  Knows not: the shapes of items, how a request is read.
Invariant: the response in the last event of a stream equals the body of the same answer unstreamed.

Thinking is an item of its own, with the text in `content`, or in `summary` if the request asks for a summary.
Logprobs are attached to the last text item. They cover every sampled token and so are known only when the answer has
ended: events of text that something else follows carry none.
"""

from __future__ import annotations

from ludus.gateway.dialects.base import Answer, ErrorReply, JsonObject, ParsedRequest
from ludus.gateway.dialects.blocks import BlockEvent, BlockStream, Closed, Grown, Opened, reply_deltas, whole_blocks
from ludus.gateway.dialects.events import event
from ludus.gateway.dialects.responses.items import (
    CALL,
    MESSAGE,
    ItemStatus,
    Shape,
    begun,
    ended,
    item_id,
    item_json,
    logprobs_json,
    part_json,
    shape_of,
    status_of,
)
from ludus.text.parsers.base import Delta


def whole(answer: Answer, parsed: ParsedRequest, model_name: str) -> JsonObject:
    """The body of an answer that is not streamed."""
    [turn] = answer.turns
    output = []
    blocks = whole_blocks(reply_deltas(turn.reply, answer.deltas))
    for idx, block in enumerate(blocks):
        status: ItemStatus = status_of(turn) if idx == len(blocks) - 1 else "completed"
        shape = shape_of(block, parsed)
        output.append(item_json(shape, item_id(shape, turn.id, idx), block, status, []))
    if parsed.logprobs:
        _add_logprobs(output, logprobs_json(turn, answer))
    return ended(begun(parsed, model_name, turn.id, int(turn.started_at)), answer, output)


class ResponseStream:
    """The events of one streamed response, numbered."""

    def __init__(self, parsed: ParsedRequest, model_name: str, created_at: float) -> None:
        self._parsed = parsed
        self._model_name = model_name
        self._created_at = int(created_at)
        self._num_events = 0
        self._turn_id = ""
        self._head: JsonObject | None = None
        """The response without items. None: the stream has not begun."""
        self._blocks = BlockStream()
        self._shape: Shape = MESSAGE
        """The shape of the open item."""
        self._address: JsonObject = {}
        self._output: list[JsonObject] = []

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes:
        self._turn_id = turn_ids[0]
        self._head = begun(self._parsed, self._model_name, self._turn_id, self._created_at)
        kinds = ("response.created", "response.in_progress")
        return b"".join([self._event(kind, response=self._head) for kind in kinds])

    def delta(self, choice_idx: int, delta: Delta) -> bytes:
        return b"".join([self._step(step, "completed", []) for step in self._blocks.feed(delta)])

    def finish(self, answer: Answer) -> bytes:
        assert self._head is not None, "a stream that has not begun has no end"
        [turn] = answer.turns
        # A retry may be answered with the first attempt's turn, for which there are no deltas to send again.
        late = () if self._blocks.has_begun else reply_deltas(turn.reply, ())
        events = [self.delta(0, delta) for delta in late]
        logprobs = logprobs_json(turn, answer) if self._parsed.logprobs else []
        # Only the end of an answer that was cut is incomplete; the steps end with it.
        steps = self._blocks.finish()
        events += [self._step(step, "completed", logprobs) for step in steps[:-1]]
        events += [self._step(step, status_of(turn), logprobs) for step in steps[-1:]]
        _add_logprobs(self._output, logprobs)
        response = ended(self._head, answer, self._output)
        return b"".join([*events, self._event(f"response.{response['status']}", response=response)])

    def error(self, error: ErrorReply) -> bytes:
        failed = self._event("error", code=error.code, message=error.message, param=error.param)
        if self._head is None:
            return failed
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        failure = {"code": code, "message": f"{error.code}: {error.message}"}
        response = {**self._head, "status": "failed", "error": failure, "output": self._output}
        return failed + self._event("response.failed", response=response)

    def _step(self, step: BlockEvent, status: ItemStatus, logprobs: list[JsonObject]) -> bytes:
        if isinstance(step, Grown):
            extra: JsonObject = {"logprobs": []} if self._shape is MESSAGE else {}
            return self._event(f"{self._shape.text_event}.delta", **self._address, delta=step.text, **extra)
        return self._open(step) if isinstance(step, Opened) else self._close(step, status, logprobs)

    def _open(self, step: Opened) -> bytes:
        shape = self._shape = shape_of(step.block, self._parsed)
        own_id = item_id(shape, self._turn_id, step.idx)
        self._address = {"item_id": own_id, "output_index": step.idx, **shape.indices}
        item = item_json(shape, own_id, step.block, "in_progress", [])
        events = self._event("response.output_item.added", output_index=step.idx, item=item)
        if shape.part_event is not None:
            events += self._event(f"{shape.part_event}.added", **self._address, part=part_json(shape, "", []))
        return events

    def _close(self, step: Closed, status: ItemStatus, logprobs: list[JsonObject]) -> bytes:
        shape, text = self._shape, step.block.text
        item = item_json(
            shape, self._address["item_id"], step.block, "incomplete" if step.is_broken else status, logprobs
        )
        events = b""
        if not step.is_broken:
            self._output.append(item)
            extra: JsonObject = {"logprobs": logprobs} if shape is MESSAGE else {}
            extra = {"name": step.block.name} if shape is CALL else extra
            events += self._event(f"{shape.text_event}.done", **self._address, **{shape.text_name: text}, **extra)
        if shape.part_event is not None:
            part = part_json(shape, text, logprobs)
            events += self._event(f"{shape.part_event}.done", **self._address, part=part)
        return events + self._event("response.output_item.done", output_index=step.idx, item=item)

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._num_events
        self._num_events += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


def _add_logprobs(output: list[JsonObject], logprobs: list[JsonObject]) -> None:
    """Attaches them to the last text, whose item may have closed before they were known."""
    texts = [item for item in output if item["type"] == "message"]
    if texts:
        texts[-1]["content"][0]["logprobs"] = logprobs
