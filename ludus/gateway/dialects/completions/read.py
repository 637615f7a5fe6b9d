"""A completion's request, read and checked.

Knows: the fields of the protocol.  Knows not: how an answer is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ludus.episodes.names import DEFAULT_MODEL
from ludus.gateway.dialects.base import JsonObject, ParsedRequest, ReadMessages
from ludus.gateway.dialects.completions import fields
from ludus.gateway.dialects.fields import (
    missing,
    numbered,
    read_boolean,
    read_integer,
    read_text,
    unsupported,
    wrong_type,
    wrong_value,
)
from ludus.gateway.dialects.openai import read_stream
from ludus.gateway.dialects.sampling import MAX_TOP_LOGPROBS, read_sampling
from ludus.types import ChatRequest, Sampling

MAX_CHOICES = 128  # as OpenAI's own, of all prompts together
DEFAULT_MAX_TOKENS = 16  # as OpenAI's own
Prompt = str | tuple[int, ...]


def read_request(body: JsonObject, defaults: Sampling, _read: ReadMessages) -> ParsedRequest:
    """The request in `body`. `_read` is unused: this protocol has no message history."""
    ignored = dict.fromkeys(fields.REQUEST.check(body))
    stream, include_usage = read_stream(body, ignored)
    prompts = _prompts(body.get("prompt"))
    num_choices = read_integer(body, "n", 1, low=1, high=MAX_CHOICES // len(prompts))
    logprobs = body.get("logprobs") is not None
    echo = read_boolean(body, "echo", False)
    if echo and logprobs:
        raise unsupported("echo", "There are logprobs of sampled tokens only; ask for one of both.")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise unsupported("echo", "Token ids are not repeated as text; send the prompt as text.")
    sampling = read_sampling(body, defaults, limits=fields.LIMITS)
    if sampling.max_new_tokens is None:
        sampling = replace(sampling, max_new_tokens=DEFAULT_MAX_TOKENS)
    if logprobs:
        sampling = replace(sampling, top_logprobs=read_integer(body, "logprobs", 0, low=0, high=MAX_TOP_LOGPROBS))
    first, *others = [ChatRequest((), sampling=sampling, n=num_choices, prompt=prompt) for prompt in prompts]
    return ParsedRequest(
        request=first,
        others=tuple(others),
        model=read_text(body, "model") or DEFAULT_MODEL,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        ignored=tuple(ignored),
        repeated={"prompts": prompts} if echo else {},
        num_new_messages=len(prompts),
    )


def _prompts(value: Any) -> list[Prompt]:
    """The prompts: one or several, each as text or as token ids."""
    if value is None:
        raise missing("prompt")
    single = _prompt(value, "prompt")
    if single is not None:
        return [single]
    if not isinstance(value, list):
        raise wrong_type(value, "a string, token ids, or an array of them", "prompt")
    if not 0 < len(value) <= MAX_CHOICES:
        raise wrong_value(len(value), f"1 to {MAX_CHOICES} prompts", "prompt")
    prompts = []
    for at, entry in numbered("prompt", value):
        prompt = _prompt(entry, at)
        if prompt is None:
            raise wrong_type(entry, "a string or token ids", at)
        prompts.append(prompt)
    return prompts


def _prompt(value: Any, at: str) -> Prompt | None:
    """The single prompt that `value` is, or None if it is not one."""
    if isinstance(value, str):
        if not value:
            raise wrong_value(value, "at least one character", at)
        return value
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in value):
        return None
    return tuple(value)
