"""What OpenAI's protocols share: the shape of an error, of token counts and logprobs; whether and how to stream.

Knows: those shapes.  Knows not: what the protocols do not share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ludus.gateway.dialects.base import (
    Answer,
    Dialect,
    ErrorReply,
    JsonObject,
    Parse,
    ParsedRequest,
    StreamWriter,
    TokenCounter,
)
from ludus.gateway.dialects.fields import FieldTable, read_boolean, read_object, wrong_value
from ludus.types import Turn

# JSON has no infinity; OpenAI's servers write this for a token that cannot occur.
LEAST_LOGPROB = -9999.0
DONE = b"data: [DONE]\n\n"
"""The end of a stream, where the events themselves do not tell it."""
STREAM_OPTIONS = FieldTable(frozenset({"include_usage"}), frozenset({"include_obfuscation"}))


@dataclass(frozen=True, slots=True)
class Streaming:
    """Whether to stream, and how."""

    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    """Options without effect."""


def read_stream(body: JsonObject) -> Streaming:
    stream = read_boolean(body, "stream", False)
    options = read_object(body, "stream_options")
    if options and not stream:
        raise wrong_value(options, "only together with 'stream': true", "stream_options")
    ignored = STREAM_OPTIONS.check(options, at="stream_options")
    obfuscates = read_boolean(options, "include_obfuscation", False, at="stream_options")
    include_usage = read_boolean(options, "include_usage", False, at="stream_options")
    return Streaming(stream, include_usage, ignored if obfuscates else ())


def openai_dialect(
    paths: tuple[str, ...],
    fields: FieldTable,
    parse: Parse,
    response: Callable[[Answer, ParsedRequest, str], JsonObject],
    writer: Callable[[ParsedRequest, str, float], StreamWriter],
    counter: TokenCounter | None = None,
) -> Dialect:
    """With what is the same in every protocol of OpenAI's: headers without effect, errors, the list of models."""
    return Dialect(
        paths,
        fields,
        parse,
        response,
        writer,
        error_json,
        lambda name: {"id": name, "object": "model", "created": 0, "owned_by": "ludus"},
        lambda models: {"object": "list", "data": models},
        ignored_headers=("openai-beta", "openai-organization", "openai-project"),
        counter=counter,
    )


def error_json(error: ErrorReply) -> JsonObject:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def usage_json(answer: Answer) -> JsonObject:
    num_sampled = answer.num_sampled_tokens
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.num_prompt_tokens + num_sampled,
        "prompt_tokens_details": {"cached_tokens": answer.turns[0].sampled.num_cached_tokens},
    }


def tokens_json(turn: Turn, answer: Answer) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
    """Every sampled token with its text, bytes and logprob, and the likeliest in its place."""
    sampled = turn.sampled
    top = sampled.top_logprobs or ((),) * len(sampled.token_ids)
    for token_id, logprob, likeliest in zip(sampled.token_ids, sampled.logprobs, top, strict=True):
        yield _token(token_id, logprob, answer), [_token(*likely, answer) for likely in likeliest]


def _token(token_id: int, logprob: float, answer: Answer) -> JsonObject:
    text = answer.token_text(token_id)
    # A token that is only a part of a character has no text of its own, hence no bytes to tell.
    raw = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "bytes": raw, "logprob": max(logprob, LEAST_LOGPROB)}
