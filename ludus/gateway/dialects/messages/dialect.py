"""Anthropic's Messages as a `Dialect`, with its endpoint for counting a prompt's tokens."""

from __future__ import annotations

from functools import partial

from ludus.gateway.dialects.base import Dialect, TokenCounter, Vendor
from ludus.gateway.dialects.messages.fields import REQUEST
from ludus.gateway.dialects.messages.read import read_request
from ludus.gateway.dialects.messages.write import MessageStream, error_json, model_json, models_json, whole

MESSAGES = Dialect(
    Vendor(error_json, model_json, models_json, ignored_headers=("anthropic-beta",)),
    # Anthropic's SDK adds `/v1` itself. A base URL that ends in it, as the other SDKs want it, must work too.
    ("/messages", "/v1/messages"),
    REQUEST,
    read_request,
    whole,
    lambda parsed, model_name, _created_at: MessageStream(parsed, model_name),  # the protocol has no time in it
    counter=TokenCounter(
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        partial(read_request, only_counted=True),
        lambda num_tokens: {"input_tokens": num_tokens},
    ),
)
