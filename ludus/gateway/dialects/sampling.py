"""The sampling fields that all protocols share, read into a `Sampling`.

Knows: names, ranges and defaults of those fields.  Knows not: messages, which protocol asks.
All of them are honoured in every protocol, also in those whose own servers lack the field.
"""

from __future__ import annotations

import dataclasses
import math

from ludus.gateway.dialects.base import JsonObject
from ludus.gateway.dialects.fields import (
    names,
    read_array,
    read_integer,
    read_number,
    read_object,
    wrong_type,
    wrong_value,
)
from ludus.types import Sampling

MAX_TOP_LOGPROBS = 20  # as OpenAI's own, like the range of a bias
MAX_LOGIT_BIAS = 100.0
_MOST_DIGITS = 9  # of a token id: no vocabulary has a billion entries, and longer numbers are no ids
SAMPLING_FIELDS = names(
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed stop_token_ids logit_bias"
)
"""Fields common to every protocol. Stop strings, token limits and logprobs are named differently in each."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def read_sampling(
    body: JsonObject, defaults: Sampling, *, limits: tuple[str, ...] = ("max_tokens",), stop: str = "stop"
) -> Sampling:
    """`defaults`, overridden by the values in `body`. Raises AgentError.

    limits: fields that limit an answer's tokens; given several, they must agree.  stop: field of the stop strings.
    """
    # -1 switches top-k off for other servers of these protocols.
    top_k = read_integer(body, "top_k", defaults.top_k, low=-1)
    return dataclasses.replace(
        defaults,
        temperature=read_number(body, "temperature", defaults.temperature, low=0.0),
        top_p=_read_positive(body, "top_p", defaults.top_p, high=1.0),
        top_k=max(top_k, 0),
        min_p=read_number(body, "min_p", defaults.min_p, low=0.0, high=1.0),
        presence_penalty=read_number(body, "presence_penalty", defaults.presence_penalty, low=-2.0, high=2.0),
        frequency_penalty=read_number(body, "frequency_penalty", defaults.frequency_penalty, low=-2.0, high=2.0),
        repetition_penalty=_read_positive(body, "repetition_penalty", defaults.repetition_penalty),
        seed=defaults.seed if body.get("seed") is None else read_integer(body, "seed", 0),
        max_new_tokens=_max_new_tokens(body, defaults, limits),
        stop=_stop(body, defaults, stop),
        stop_token_ids=_stop_token_ids(body, defaults),
        top_logprobs=read_integer(body, "top_logprobs", defaults.top_logprobs, low=0, high=MAX_TOP_LOGPROBS),
        logit_bias=_logit_bias(body, defaults),
    )


def _read_positive(body: JsonObject, name: str, default: float, *, high: float = math.inf) -> float:
    value = read_number(body, name, default, low=0.0, high=high)
    if value == 0.0:
        raise wrong_value(value, "greater than 0", name)
    return value


def _max_new_tokens(body: JsonObject, defaults: Sampling, limits: tuple[str, ...]) -> int | None:
    named = {name: read_integer(body, name, 1, low=1) for name in limits if body.get(name) is not None}
    if len(set(named.values())) > 1:
        first, second = named
        raise wrong_value(named[first], f"the value of {second!r}, or leave it out", first)
    return next(iter(named.values()), defaults.max_new_tokens)


def _logit_bias(body: JsonObject, defaults: Sampling) -> tuple[tuple[int, float], ...]:
    if body.get("logit_bias") is None:
        return defaults.logit_bias
    given = read_object(body, "logit_bias")
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS and key == str(int(key))):
            raise wrong_value(key, "token ids as names", "logit_bias")
    biases = {
        int(key): read_number(given, key, 0.0, low=-MAX_LOGIT_BIAS, high=MAX_LOGIT_BIAS, at="logit_bias")
        for key in given
    }
    return tuple((token_id, biases[token_id]) for token_id in sorted(biases) if biases[token_id] != 0.0)


def _stop(body: JsonObject, defaults: Sampling, name: str) -> tuple[str, ...]:
    value = body.get(name)
    if value is None:
        return defaults.stop
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_type(value, "a string or an array of strings", name)
    if "" in texts:
        raise wrong_value(value, "strings of at least one character", name)
    return tuple(texts)


def _stop_token_ids(body: JsonObject, defaults: Sampling) -> tuple[int, ...]:
    if body.get("stop_token_ids") is None:
        return defaults.stop_token_ids
    ids = read_array(body, "stop_token_ids")
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in ids):
        raise wrong_value(ids, "an array of token ids", "stop_token_ids")
    return tuple(ids)
