"""FastAPI routes that check the key first, then read a bounded body, and refuse with our own errors.

Knows: FastAPI.  Knows not: any route, how a refusal is written.
FastAPI reads a body before it runs dependencies, parses JSON of any depth on the loop, and ignores JSON without a
content type. So the key is checked and the body read here, before FastAPI gets the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ludus.errors import AgentError, LudusError
from ludus.http.body import read_body
from ludus.http.keys import SECURITY, SECURITY_SCHEMES

Check = Callable[[Request], object]
Read = Callable[[Any, bytes], pydantic.BaseModel]
"""(model, body): parses a body to the pydantic model that a handler takes."""
Refuse = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def guarded(check: Check, read: Read, *, most_bytes: int) -> APIRouter:
    """A router that checks requests with `check` and parses bodies, of at most `most_bytes`, with `read`."""

    class Guarded(APIRoute):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "openapi_extra": {"security": SECURITY}})

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()
            form: Any = None if self.body_field is None else self.body_field.field_info.annotation

            async def guard(request: Request) -> Response:
                check(request)
                try:
                    if form is not None:
                        body = await read_body(request, most_bytes)
                        request = _Read(request, await asyncio.to_thread(read, form, body))
                    return await answer(request)
                except ClientDisconnect:
                    return Response(status_code=400)  # nobody is there to read it

            return guard

    # Clients always see our own errors, never FastAPI's 422.
    return APIRouter(route_class=Guarded, responses={"default": {"description": "An error"}})


class _Read(Request):
    """A request whose body was already read, whatever its content type."""

    def __init__(self, request: Request, body: pydantic.BaseModel) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        super().__init__(
            {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}, request.receive
        )
        self._model = body

    async def body(self) -> bytes:
        return b"{}"  # FastAPI looks whether there is one, then asks for its JSON

    async def json(self) -> pydantic.BaseModel:
        return self._model


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["securitySchemes"] = SECURITY_SCHEMES
        return document


def application(*routers: APIRouter, refuse: Refuse, no_route: Refuse) -> FastAPI:
    """refuse: answers any error (for a bad parameter an AgentError).  no_route: answers requests for unknown routes."""

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        message = f"Invalid value for {name!r}: {first['msg']}."
        return await refuse(request, AgentError(message, code="invalid_value", param=name))

    handlers: dict[Any, Any] = {
        RequestValidationError: invalid,
        HTTPException: no_route,
        LudusError: refuse,
        Exception: refuse,
    }
    app = _Application(title="Ludus", openapi_url=None, redirect_slashes=False, exception_handlers=handlers)
    for router in routers:
        app.router.routes.extend(router.routes)
    return app
