"""The server's ASGI application: models, jobs, events, and each model's own gateway, behind one key.

Knows: URLs, headers, status codes.  Knows not: what a job does, wire protocols of models, threads.
Rules: everything but the handshake and the probes wants the key. Errors are those of the wire, below
`/m/{project}/{name}` those of the protocol that is spoken there.

    GET  /api                                     who is there, and which versions it speaks
    POST /api/v1/models                           register, and load unless ?load=false
    GET  /api/v1/models[/{project}/{name}]        view
    POST /api/v1/models/{project}/{name}/checkpoints   keep these, delete the others
    POST /api/v1/models/{project}/{name}/sessions/end
    POST /api/v1/models/{project}/{name}/jobs     submit                  GET: all of them
    GET  /api/v1/openapi.json                     these routes below /api/v1, and their bodies
    GET  /api/v1/jobs/{id}                        view
    POST /api/v1/jobs/{id}/cancel
    GET  /api/v1/jobs/{id}/events                 server-sent, from Last-Event-ID on
         /m/{project}/{name}/v1/…                 the model, in the protocols of OpenAI and Anthropic
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated

import fastapi
import pydantic
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

import ludus
from ludus.cluster.serve.gateways import SHARED
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.models import HostedModels
from ludus.cluster.serve.wire import (
    BEHIND_KEY,
    LAST_EVENT,
    MAX_JOB_BYTES,
    ROOT,
    SESSION,
    VERSION,
    EndSession,
    Handshake,
    JobView,
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
from ludus.episodes.outcome import Reported
from ludus.errors import AgentError
from ludus.gateway.app import KEEP_ALIVE_S
from ludus.gateway.exchange import EVENT_STREAM, KEEP_ALIVE
from ludus.http.api import application, guarded
from ludus.http.body import read_model
from ludus.http.keys import is_key, keys_of
from ludus.http.numbers import read_count

logger = logging.getLogger(__name__)

PROBES = ("/", "/health", "/healthz")
MAX_SMALL_BODY_BYTES = 2**20
_NO_KEY = "no API key was given; send the server's key as a bearer token"
Header = Annotated[str | None, fastapi.Header()]
JobId = Annotated[str, fastapi.Path(alias="id")]


class JobList(pydantic.BaseModel):
    """The jobs of a model."""

    jobs: list[JobView]


class Api:
    """The handlers of the routes. `key_digest`: of the key that everybody needs."""

    def __init__(
        self, jobs: Jobs, models: HostedModels, key_digest: bytes, *, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        self._jobs = jobs
        self._models = models
        self._key_digest = key_digest
        self._keep_alive_s = keep_alive_s

    def build(self) -> FastAPI:
        """The application."""
        small = guarded(self._check_key, read_model, most_bytes=MAX_SMALL_BODY_BYTES)
        large = guarded(self._check_key, read_model, most_bytes=MAX_JOB_BYTES)
        model, job = f"{ROOT}/models/{{project}}/{{name}}", f"{ROOT}/jobs/{{id}}"
        small.post(f"{ROOT}/models")(self.register)
        small.get(f"{ROOT}/models")(self.list_models)
        small.get(model)(self.view)
        small.post(f"{model}/checkpoints")(self.keep_checkpoints)
        small.post(f"{model}/sessions/end", status_code=204)(self.end_session)
        large.post(f"{model}/jobs", response_model=JobView)(self.submit)
        small.get(f"{model}/jobs")(self.list_jobs)
        small.get(job)(self.job)
        small.post(f"{job}/cancel")(self.cancel)
        small.get(f"{job}/events", response_class=StreamingResponse)(self.events)
        small.get(f"{ROOT}/openapi.json", include_in_schema=False)(_document)
        app = application(small, large, refuse=_refused, no_route=_no_route)
        for path in PROBES:
            app.add_route(path, _probe)
        app.add_route("/api", _handshake)
        app.mount("/m/{project}/{name}", self._model)
        return app

    def _check_key(self, request: Request) -> str:
        """What stands behind the server's key. '': nothing."""
        keys = keys_of(request.headers)
        for key in keys:
            own, _, behind = key.rpartition(BEHIND_KEY)
            if is_key(key, self._key_digest):
                return ""
            if is_key(own, self._key_digest):
                return behind
        said = f"{unknown_key(keys[0]).message.partition(';')[0]}; it is not this server's" if keys else _NO_KEY
        raise AgentError(said, status=401, code="invalid_api_key")

    # ---- models

    async def register(self, model: RegisterModel, load: str = "true") -> ModelView:
        await asyncio.to_thread(self._jobs.store.register, model)
        return await (self._models.ready(model) if load != "false" else self._models.view(model))

    async def list_models(self) -> ModelList:
        models = await asyncio.to_thread(self._jobs.store.models)
        return ModelList(models=[await self._models.view(model) for model in models])

    async def view(self, project: str, name: str) -> ModelView:
        return await self._models.ready(await self._named(project, name))

    async def keep_checkpoints(self, project: str, name: str, body: KeepCheckpoints) -> ModelView:
        return await self._models.keep_checkpoints(await self._named(project, name), frozenset(body.steps))

    async def end_session(self, project: str, name: str, body: EndSession) -> None:
        gateway = await self._models.gateway(await self._named(project, name))
        await gateway.end(body.session, Reported(body.outcome, body.reason))

    async def _named(self, project: str, name: str) -> RegisterModel:
        return await asyncio.to_thread(self._jobs.store.model, project, name)

    # ---- jobs

    async def submit(
        self, project: str, name: str, job: SubmitJob, response: Response, idempotency_key: Header = None
    ) -> JobView:
        model = await self._named(project, name)
        key = None if idempotency_key is None else check_idempotency_key(idempotency_key)
        view, is_new = await asyncio.to_thread(self._jobs.submit, model, job, idempotency_key=key)
        response.status_code = 202 if is_new else 200
        return view

    async def list_jobs(self, project: str, name: str) -> JobList:
        model = await self._named(project, name)
        return JobList(jobs=await asyncio.to_thread(self._jobs.store.jobs, model.project, model.name))

    async def job(self, job_id: JobId) -> JobView:
        return await asyncio.to_thread(self._jobs.store.job, job_id)

    async def cancel(self, job_id: JobId) -> JobView:
        return await asyncio.to_thread(self._jobs.cancel, job_id)

    async def events(self, job_id: JobId, last_event_id: Header = None) -> Response:
        after = read_count(last_event_id or "0", LAST_EVENT)
        await asyncio.to_thread(self._jobs.store.job, job_id)  # 404 before the stream begins

        async def stream() -> AsyncIterator[bytes]:
            async for event in self._jobs.follow(job_id, after=after, keep_alive_s=self._keep_alive_s):
                yield KEEP_ALIVE if event is None else event.server_sent()

        return StreamingResponse(stream(), headers=EVENT_STREAM)

    # ---- a model's own gateway

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        session = self._check_key(request) or request.headers.get(SESSION, SHARED)
        params = request.path_params
        gateway = await self._models.gateway(await self._named(params["project"], params["name"]))
        await gateway.app(session, scope, receive, send)


async def _probe(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _document(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


async def _handshake(_request: Request) -> Response:
    handshake = Handshake(server=f"ludus {ludus.__version__}", versions=[VERSION])
    return Response(handshake.model_dump_json(), media_type="application/json")


async def _refused(_request: Request, error: Exception) -> Response:
    view = error_view(error)
    return JSONResponse({"error": view.model_dump()}, status_of(error))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = AgentError(
        f"{request.method} {request.scope['path']}: {error.detail}; this server speaks {VERSION}",
        status=error.status_code,
        code={404: "unknown_url", 405: "method_not_supported"}.get(error.status_code, "invalid_request"),
    )
    return JSONResponse({"error": error_view(refusal).model_dump()}, refusal.status, headers=error.headers)
