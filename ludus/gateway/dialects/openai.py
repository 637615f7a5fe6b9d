"""What OpenAI's protocols share: the shape of errors, token counts and logprobs, and how to stream.

Knows: those shapes.  Knows not: what the protocols do not share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ludus.gateway.dialects.base import Answer, ErrorReply, JsonObject, ParsedRequest, Vendor
from ludus.gateway.dialects.events import event
from ludus.gateway.dialects.fields import FieldTable, read_boolean, read_object, wrong_value
from ludus.types import Turn

# JSON has no infinity; OpenAI's servers write this for a token that cannot occur.
LEAST_LOGPROB = -9999.0
DONE = b"data: [DONE]\n\n"
"""The last event of a stream, in the protocols whose events have no end of their own."""
STREAM_OPTIONS = FieldTable.of("include_usage", "include_obfuscation")


def read_stream(body: JsonObject, ignored: dict[str, None]) -> tuple[bool, bool]:
    """Whether to stream, and whether to end a stream with token counts. Options without effect go to `ignored`."""
    stream = read_boolean(body, "stream", False)
    options = read_object(body, "stream_options")
    if options and not stream:
        raise wrong_value(options, "only together with 'stream': true", "stream_options")
    without_effect = STREAM_OPTIONS.check(options, at="stream_options")
    if read_boolean(options, "include_obfuscation", False, at="stream_options"):
        ignored.update(dict.fromkeys(without_effect))
    return stream, read_boolean(options, "include_usage", False, at="stream_options")


def error_json(error: ErrorReply) -> JsonObject:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


OPENAI = Vendor(
    error_json,
    lambda name: {"id": name, "object": "model", "created": 0, "owned_by": "ludus"},
    lambda models: {"object": "list", "data": models},
    ignored_headers=("openai-beta", "openai-organization", "openai-project"),
)


def usage_json(answer: Answer) -> JsonObject:
    num_sampled = answer.num_sampled_tokens
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.num_prompt_tokens + num_sampled,
        "prompt_tokens_details": {"cached_tokens": answer.turns[0].sampled.num_cached_tokens},
    }


class ChunkWriter:
    """Builds the events of a streamed answer with choices."""

    def __init__(self, parsed: ParsedRequest, kind: str, model_name: str, created_at: float) -> None:
        self._include_usage = parsed.include_usage
        self._head: JsonObject = {"id": "", "object": kind, "created": int(created_at), "model": model_name}

    def start(self, own_id: str) -> None:
        self._head["id"] = own_id

    def chunk(self, choice_idx: int, more: JsonObject, last: JsonObject, beside: Mapping[str, object] = {}) -> bytes:
        """One event of a choice. more: what is new.  last: fields known only once the choice is complete.  beside:
        fields of the event itself."""
        choice = {"index": choice_idx, **more, "logprobs": None, "finish_reason": None, **last}
        chunk = {**self._head, **beside, "choices": [choice]}
        return event({**chunk, "usage": None} if self._include_usage else chunk)

    def end(self, answer: Answer) -> bytes:
        """The events after the last choice."""
        usage = {**self._head, "choices": [], "usage": usage_json(answer)}
        return (event(usage) if self._include_usage else b"") + DONE

    def error(self, error: ErrorReply) -> bytes:
        return event(error_json(error)) + DONE


def tokens_json(turn: Turn, answer: Answer) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
    """Every sampled token with its text, bytes and logprob, each with its top alternatives."""
    sampled = turn.sampled
    top = sampled.top_logprobs or ((),) * len(sampled.token_ids)
    for token_id, logprob, likeliest in zip(sampled.token_ids, sampled.logprobs, top, strict=True):
        yield _token(token_id, logprob, answer), [_token(*likely, answer) for likely in likeliest]


def _token(token_id: int, logprob: float, answer: Answer) -> JsonObject:
    text = answer.token_text(token_id)
    # A token that is only part of a character has no text of its own, hence no bytes.
    raw = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "bytes": raw, "logprob": max(logprob, LEAST_LOGPROB)}
