"""An HTTP application that answers with a run's models, for the process that serves the run's page.

Knows: one route, a key, events.  Knows not: how answers are made.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.api.sampler import RunSampler
from ludus.errors import AgentError, LudusError, UserError
from ludus.http.body import read_body, read_model
from ludus.http.keys import digest, is_key, keys_of
from ludus.runs.watch.question import ANSWERS, Question

_ASKER, _OURS = 400, 500


def answers_app(sampler: RunSampler, key: str) -> Starlette:
    """key: requests without it are refused."""
    expected = digest(key)

    async def answer(request: Request) -> Response:
        if not any(is_key(each, expected) for each in keys_of(request.headers)):
            return JSONResponse({"detail": "The key is missing, or another."}, 401)
        question = read_model(Question, await read_body(request))
        return StreamingResponse(_events(sampler, question), media_type="text/event-stream")

    async def refused(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, _ASKER)

    return Starlette(routes=[Route(ANSWERS, answer, methods=["POST"])], exception_handlers={AgentError: refused})


async def _events(sampler: RunSampler, question: Question) -> AsyncIterator[bytes]:
    """The answer's events; an error is the last event, with `detail` and `status`."""
    try:
        async for event in sampler.answer(question):
            yield _event(event)
    except LudusError as error:
        status = error.status if isinstance(error, AgentError) else _ASKER if isinstance(error, UserError) else _OURS
        yield _event({"detail": str(error), "status": status})


def _event(data: dict[str, object]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
