"""OpenAI's Responses as a `Dialect`, with its endpoint for counting a prompt's tokens."""

from __future__ import annotations

from ludus.gateway.dialects.base import Dialect, TokenCounter
from ludus.gateway.dialects.openai import OPENAI
from ludus.gateway.dialects.responses.fields import REQUEST
from ludus.gateway.dialects.responses.read import read_request
from ludus.gateway.dialects.responses.write import ResponseStream, whole

RESPONSES = Dialect(
    OPENAI,
    ("/responses",),
    REQUEST,
    read_request,
    whole,
    ResponseStream,
    counter=TokenCounter(
        ("/responses/input_tokens",),
        read_request,
        lambda num_tokens: {"object": "response.input_tokens", "input_tokens": num_tokens},
    ),
)
