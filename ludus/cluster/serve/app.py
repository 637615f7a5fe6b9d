"""The server's ASGI application: models, jobs, events, and each model's own gateway, behind one key.

Knows: URLs, headers, status codes.  Knows not: what a job does, wire protocols of models, threads.
Rules: everything but the handshake and the probes wants the key. Errors are those of the wire, below
`/m/{project}/{name}` those of the protocol that is spoken there.

    GET  /api                                     who is there, and which versions it speaks
    POST /api/v1/models                           register, and load unless ?load=false
    GET  /api/v1/models[/{project}/{name}]        look
    POST /api/v1/models/{project}/{name}/checkpoints   keep these, delete the others
    POST /api/v1/models/{project}/{name}/sessions/end
    POST /api/v1/models/{project}/{name}/jobs     submit                  GET: all of them
    GET  /api/v1/jobs/{id}                        look
    POST /api/v1/jobs/{id}/cancel
    GET  /api/v1/jobs/{id}/events                 server-sent, from Last-Event-ID on
         /m/{project}/{name}/v1/…                 the model, in the words of OpenAI's and Anthropic's protocols
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

import pydantic
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

import ludus
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.wire import (
    IDEMPOTENCY_KEY,
    LAST_EVENT,
    LOAD,
    MAX_JOB_BYTES,
    ROOT,
    VERSION,
    EndSession,
    Handshake,
    JobEvent,
    KeepCheckpoints,
    ModelList,
    ModelView,
    RegisterModel,
    SubmitJob,
    check_idempotency_key,
    error_view,
    status_of,
)
from ludus.episodes.keys import unknown_key
from ludus.episodes.outcome import Ending, Told
from ludus.errors import AgentError, LudusError
from ludus.gateway.app import KEEP_ALIVE_S
from ludus.gateway.exchange import EVENT_STREAM, KEEP_ALIVE
from ludus.http.body import Body, read_body, read_model
from ludus.http.keys import is_key, keys_of

logger = logging.getLogger(__name__)

PROBES = ("/", "/health", "/healthz")
MAX_SMALL_BODY_BYTES = 2**20
Handler = Callable[[Request], Awaitable[Response]]
BodyT = TypeVar("BodyT", bound=Body)


class Gateway(Protocol):
    """Where one model answers."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def end(self, name: str, ending: Ending) -> None:
        """The session of that name gets no more turns."""


class Models(Protocol):
    """What the server knows of models beyond their jobs. Called on the server's loop."""

    async def ready(self, model: RegisterModel) -> ModelView:
        """The model, loaded; it is not yet if that takes longer than a client should wait for an answer."""

    async def look(self, model: RegisterModel) -> ModelView:
        """The model as it is; nothing is loaded."""

    async def keep_checkpoints(self, model: RegisterModel, steps: frozenset[int]) -> ModelView: ...

    async def gateway(self, model: RegisterModel) -> Gateway:
        """The model's, which is loaded when this returns."""


class Api:
    """The handlers of the routes. `key_digest`: of the key that everybody needs."""

    def __init__(self, jobs: Jobs, models: Models, key_digest: bytes, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._jobs = jobs
        self._models = models
        self._key_digest = key_digest
        self._keep_alive_s = keep_alive_s

    def build(self) -> Starlette:
        """The application."""
        model, job = f"{ROOT}/models/{{project}}/{{name}}", f"{ROOT}/jobs/{{id}}"
        routes: list[BaseRoute] = [
            *(Route(path, _probe, methods=["GET"]) for path in PROBES),
            Route("/api", _handshake, methods=["GET"]),
            self._route("POST", f"{ROOT}/models", self._register),
            self._route("GET", f"{ROOT}/models", self._list_models),
            self._route("GET", model, self._look),
            self._route("POST", f"{model}/checkpoints", self._keep_checkpoints),
            self._route("POST", f"{model}/sessions/end", self._end_session),
            self._route("POST", f"{model}/jobs", self._submit),
            self._route("GET", f"{model}/jobs", self._list_jobs),
            self._route("GET", job, self._job),
            self._route("POST", f"{job}/cancel", self._cancel),
            self._route("GET", f"{job}/events", self._events),
            Mount("/m/{project}/{name}", app=self._model),
        ]
        handlers = {HTTPException: _no_route, LudusError: _refused, Exception: _refused}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def answer(request: Request) -> Response:
            self._check_key(request)
            try:
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it

        return Route(path, answer, methods=[method])

    def _check_key(self, request: Request) -> None:
        keys = keys_of(request.headers)
        if not any(is_key(key, self._key_digest) for key in keys):
            raise unknown_server_key(keys[0] if keys else "")

    # ---- models

    async def _register(self, request: Request) -> Response:
        model = await _read(RegisterModel, request, MAX_SMALL_BODY_BYTES)
        await asyncio.to_thread(self._jobs.store.register, model)
        is_wanted = request.query_params.get(LOAD, "true") != "false"
        return _json(await (self._models.ready(model) if is_wanted else self._models.look(model)))

    async def _list_models(self, request: Request) -> Response:
        models = await asyncio.to_thread(self._jobs.store.models)
        return _json(ModelList(models=[await self._models.look(model) for model in models]))

    async def _look(self, request: Request) -> Response:
        return _json(await self._models.ready(await self._named(request)))

    async def _keep_checkpoints(self, request: Request) -> Response:
        model = await self._named(request)
        body = await _read(KeepCheckpoints, request, MAX_SMALL_BODY_BYTES)
        return _json(await self._models.keep_checkpoints(model, frozenset(body.steps)))

    async def _end_session(self, request: Request) -> Response:
        model = await self._named(request)
        body = await _read(EndSession, request, MAX_SMALL_BODY_BYTES)
        await (await self._models.gateway(model)).end(body.session, Told(body.outcome, body.reason))
        return Response(status_code=204)

    async def _named(self, request: Request) -> RegisterModel:
        project, name = request.path_params["project"], request.path_params["name"]
        model = await asyncio.to_thread(self._jobs.store.find_model, project, name)
        if model is None:
            raise AgentError(
                f"there is no model {name!r} in the project {project!r}; register it first",
                status=404,
                code="model_not_found",
            )
        return model

    # ---- jobs

    async def _submit(self, request: Request) -> Response:
        model = await self._named(request)
        job = await _read(SubmitJob, request, MAX_JOB_BYTES)
        key = request.headers.get(IDEMPOTENCY_KEY)
        key = None if key is None else check_idempotency_key(key)
        view, is_new = await asyncio.to_thread(self._jobs.submit, model, job, idempotency_key=key)
        return _json(view, status=202 if is_new else 200)

    async def _list_jobs(self, request: Request) -> Response:
        model = await self._named(request)
        views = await asyncio.to_thread(self._jobs.store.jobs, model.project, model.name)
        return JSONResponse({"jobs": [view.model_dump(mode="json") for view in views]})

    async def _job(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self._jobs.store.job, request.path_params["id"]))

    async def _cancel(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self._jobs.cancel, request.path_params["id"]))

    async def _events(self, request: Request) -> Response:
        job_id, after = request.path_params["id"], _number(request.headers.get(LAST_EVENT, "0"))
        await asyncio.to_thread(self._jobs.store.job, job_id)  # 404 before the stream begins

        async def stream() -> AsyncIterator[bytes]:
            async for event in self._jobs.follow(job_id, after=after, keep_alive_s=self._keep_alive_s):
                yield KEEP_ALIVE if event is None else event_bytes(event)

        return StreamingResponse(stream(), headers=EVENT_STREAM)

    # ---- a model's own gateway

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self._check_key(request)
        gateway = await self._models.gateway(await self._named(request))
        await gateway.app(scope, receive, send)


def unknown_server_key(key: str) -> AgentError:
    """What is said to a client without the server's key."""
    if not key:
        return AgentError(
            "no API key was given; send the server's key as a bearer token", status=401, code="invalid_api_key"
        )
    return AgentError(
        f"{unknown_key(key).message.partition(';')[0]}; it is not this server's", status=401, code="invalid_api_key"
    )


def event_bytes(event: JobEvent) -> bytes:
    """The event as a server-sent one, whose id is its number."""
    return f"id: {event.number}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()


async def _read(form: type[BodyT], request: Request, most_bytes: int) -> BodyT:
    body = await read_body(request, most_bytes)
    return await asyncio.to_thread(read_model, form, body)  # thousands of conversations take seconds to read


def _json(answer: pydantic.BaseModel, *, status: int = 200) -> Response:
    return Response(answer.model_dump_json(), status, media_type="application/json")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise AgentError(
            f"{LAST_EVENT}={text!r} must be the number of an event", code="invalid_value", param=LAST_EVENT
        )
    return int(text)


async def _probe(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _handshake(_request: Request) -> Response:
    return _json(Handshake(server=f"ludus {ludus.__version__}", versions=[VERSION]))


async def _refused(_request: Request, error: Exception) -> Response:
    view = error_view(error)
    return JSONResponse({"error": view.model_dump()}, status_of(error))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = AgentError(
        f"{request.method} {request.url.path}: {error.detail}; this server speaks {VERSION}",
        status=error.status_code,
        code={404: "unknown_url", 405: "method_not_supported"}.get(error.status_code, "invalid_request"),
    )
    return JSONResponse({"error": error_view(told).model_dump()}, told.status, headers=error.headers)
