"""A completion's answer, as one body or as server-sent events.

Knows: the shapes of the protocol.  Knows not: how a request is read.
"""

from __future__ import annotations

from ludus.episodes.ids import COMPLETION, shown_id
from ludus.gateway.dialects.base import Answer, ErrorReply, JsonObject, ParsedRequest
from ludus.gateway.dialects.openai import ChunkWriter, tokens_json, usage_json
from ludus.text.parsers.base import ContentDelta, Delta
from ludus.types import Turn


def whole(answer: Answer, parsed: ParsedRequest, model_name: str) -> JsonObject:
    """The body of an answer that is not streamed."""
    choices = [
        {
            "index": i,
            "text": echoed(parsed, i) + (turn.reply.content or ""),
            "logprobs": _logprobs(turn, answer) if parsed.logprobs else None,
            "finish_reason": turn.finish_reason,
        }
        for i, turn in enumerate(answer.turns)
    ]
    return {
        "id": shown_id(answer.turns[0].id, COMPLETION),
        "object": "text_completion",
        "created": int(answer.turns[0].started_at),
        "model": model_name,
        "choices": choices,
        "usage": usage_json(answer),
    }


class CompletionStream:
    """The chunks of one streamed answer: text, a finish reason for each choice, usage if asked."""

    def __init__(self, parsed: ParsedRequest, model_name: str, created_at: float) -> None:
        self._parsed = parsed
        self._chunks = ChunkWriter(parsed, "text_completion", model_name, created_at)
        self._begun: set[int] = set()

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes:
        self._chunks.start(shown_id(turn_ids[0], COMPLETION))
        texts = [echoed(self._parsed, i) for i in range(len(turn_ids))]
        return b"".join([self._chunk(i, text) for i, text in enumerate(texts) if text])

    def delta(self, choice_idx: int, delta: Delta) -> bytes:
        assert isinstance(delta, ContentDelta), f"what follows a raw prompt is text, not {delta}"
        self._begun.add(choice_idx)
        return self._chunk(choice_idx, delta.text)

    def finish(self, answer: Answer) -> bytes:
        return b"".join([self._end(i, turn, answer) for i, turn in enumerate(answer.turns)]) + self._chunks.end(answer)

    def error(self, error: ErrorReply) -> bytes:
        return self._chunks.error(error)

    def _end(self, choice_idx: int, turn: Turn, answer: Answer) -> bytes:
        # A retry may be answered with the first attempt's turn, for which there are no deltas to send again.
        late = "" if choice_idx in self._begun else turn.reply.content or ""
        logprobs = _logprobs(turn, answer) if self._parsed.logprobs else None
        return self._chunk(choice_idx, late, logprobs=logprobs, finish_reason=turn.finish_reason)

    def _chunk(self, choice_idx: int, text: str, **last: object) -> bytes:
        return self._chunks.chunk(choice_idx, {"text": text}, last)


def echoed(parsed: ParsedRequest, choice_idx: int) -> str:
    """The prompt of a choice if the request asked for an echo, else nothing."""
    prompts = parsed.repeated.get("prompts")
    return str(prompts[choice_idx // parsed.request.n]) if prompts else ""


def _logprobs(turn: Turn, answer: Answer) -> JsonObject:
    """Logprobs in the older shape: parallel lists, and the top alternatives keyed by their text."""
    tokens, logprobs, top, offsets, offset = [], [], [], [], 0
    for token, likeliest in tokens_json(turn, answer):
        tokens.append(token["token"])
        logprobs.append(token["logprob"])
        top.append({each["token"]: each["logprob"] for each in (*reversed(likeliest), token)})
        offsets.append(offset)
        offset = min(offset + len(token["token"]), len(turn.reply.content or ""))
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": top if turn.sampling.top_logprobs else None,
        "text_offset": offsets,
    }
