"""Limits of a request's body: its size, how deep its JSON may be nested, and the fields it may have.

Knows: bytes, JSON, pydantic.  Knows not: routes, sessions.
Invariant: no body that is accepted makes later code run out of stack or memory.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic
import pydantic_core
from starlette.requests import Request

from ludus.errors import AgentError
from ludus.settings import nearest

MAX_BODY_BYTES = 64 * 2**20  # some 16 million tokens of text, more than any model's context
DRAINED = 4  # times that are read and thrown away: a client that is cut off while it sends never reads the refusal
TOO_LARGE = 413


class Body(pydantic.BaseModel):
    """Base class of request bodies: unknown fields are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, most_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises AgentError 413 if it is longer than `most_bytes`, ClientDisconnect if the client left."""
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= most_bytes:
            chunks.append(chunk)
        elif num_bytes > DRAINED * most_bytes:
            break
    if num_bytes > most_bytes:
        raise AgentError(
            f"The request's body has more than {most_bytes} bytes; send a shorter history.",
            status=TOO_LARGE,
            code="request_too_large",
        )
    return b"".join(chunks)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises AgentError if it is not one, or exceeds the parser's 200 levels of nesting."""
    try:
        # This parser bounds the depth and refuses half a surrogate pair, which no text can hold.
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise AgentError(f"The request's body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise AgentError("The request's body must be a JSON object.", code="invalid_json")
    return value


def read_model(model: type[BodyT], body: bytes) -> BodyT:
    """`body` as a `model`; an empty body has no fields. Raises AgentError with the codes that the dialects use."""
    try:
        return model.model_validate(json_object(body or b"{}"))
    except pydantic.ValidationError as error:
        # An unknown field is often a misspelt one that is also missing, so it is reported first.
        first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
        param = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            like = nearest(param, model.model_fields)
            hint = f" Did you mean {like!r}?" if like else f" Known: {', '.join(model.model_fields)}."
            message = f"Unrecognized request argument supplied: {param}.{hint}"
            raise AgentError(message, code="unknown_parameter", param=param) from None
        if first["type"] == "missing":
            message = f"Missing required parameter: {param!r}."
            raise AgentError(message, code="missing_required_parameter", param=param) from None
        message = f"Invalid value for {param or 'the body'!r}: {first['msg']}."
        raise AgentError(message, code="invalid_value", param=param or None) from None
