"""The gateway's ASGI application: routes, keys and headers. All that is specific to a protocol is left to its dialect.

Knows: URLs, HTTP headers, status codes.  Knows not: the fields of any protocol, threads, engines.
Every error, unknown routes included, is answered in the protocol's own shape.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI

from ludus.episodes.episodes import Episodes
from ludus.episodes.keys import OpenMode, SessionKeys
from ludus.episodes.names import UNNAMED
from ludus.episodes.session import Session
from ludus.errors import AgentError, LudusError
from ludus.gateway.clients import Clients
from ludus.gateway.dialects.base import (
    Dialect,
    ErrorReply,
    JsonObject,
    ParsedRequest,
    TokenCounter,
    error_reply,
)
from ludus.gateway.dialects.table import DIALECTS
from ludus.gateway.exchange import Exchange, GatewayRequest, Headers, send_error, send_json
from ludus.gateway.openapi import openapi_document
from ludus.gateway.traffic import Traffic
from ludus.http.body import MAX_BODY_BYTES, json_object, read_body
from ludus.http.keys import check_key
from ludus.types import ChatRequest

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0  # half of the shortest idle limit that is common among proxies, 30 s
MOUNTS = ("/s/{secret}/v1", "/v1")
# Anthropic's SDK adds `/v1` itself; a base URL that ends in it, as the other SDKs want it, must work too.
MODELS_PATHS = ("/models", "/v1/models")
AGENT_HEADER = "x-ludus-agent"
MODEL_HEADER = "x-ludus-model"
"""Response header that names the model that answered, where it is another than the one the request named."""
# Clients of Anthropic's protocol say which version they speak; all others expect what OpenAI's servers do.
VERSION_HEADER = "anthropic-version"
DOCUMENT_PATH = "/openapi.json"
# Clients ask for these before their first request, to see whether anybody is there.
PROBES = ("/", "/health", "/healthz", "/s/{secret}", "/s/{secret}/", *MOUNTS)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Settings that apply to all requests of one gateway."""

    open_mode: OpenMode | None = None
    """Opens a session for a key that belongs to none. None: such a key is refused."""
    model_names: Callable[[], Sequence[str]] = UNNAMED.listed
    """The model names listed for a key that belongs to no session."""
    episodes: Episodes | None = None
    """The sessions that the admin key opens, rewards and ends over HTTP. None: there are no administration routes."""
    admin_key: str | None = None
    """Required with `episodes`."""
    max_body_bytes: int = MAX_BODY_BYTES
    keep_alive_s: float = KEEP_ALIVE_S
    """A stream that has been silent for this long is sent a comment, so that proxies keep it open."""


DEFAULT_OPTIONS = GatewayOptions()


def check_admin_key(host: str, admin_key: str | None) -> None:
    """Raises UserError if others than the admin could administer a gateway that listens on `host`.

    admin_key: the key that the user gave. None: one will be made.
    """
    check_key("a gateway", host, admin_key, variable="LUDUS_ADMIN_KEY")


def build_app(
    keys: SessionKeys, options: GatewayOptions = DEFAULT_OPTIONS, traffic: Traffic | None = None
) -> Starlette:
    """The application that serves the sessions of `keys`; it keeps no other state.

    traffic: counts the requests. None: they are not counted.
    """
    counted = Traffic() if traffic is None else traffic
    models, clients = _Models(keys, options), Clients()
    # Routes are tried one after the other, so the most used come first.
    routes: list[BaseRoute] = []
    for mount in MOUNTS:
        for name, dialect in DIALECTS.items():
            endpoint = _Endpoint(name, keys, clients, options, counted)
            routes += [Route(mount + path, endpoint, methods=["POST"]) for path in dialect.paths]
    for mount in MOUNTS:
        for name, dialect in DIALECTS.items():
            if dialect.counter is not None:
                count = _Endpoint(name, keys, clients, options, counted, dialect.counter)
                routes += [Route(mount + path, count, methods=["POST"]) for path in dialect.counter.paths]
        for path in MODELS_PATHS:
            routes.append(Route(mount + path, models.list_all, methods=["GET"]))
            routes.append(Route(f"{mount}{path}/{{name:path}}", models.get_one, methods=["GET"]))
    routes += [Route(path, _healthz, methods=["GET"]) for path in PROBES]
    api: FastAPI | None = None
    if options.episodes is not None:
        # Imported here: FastAPI takes 0.1 s to load, and few gateways are administered.
        from ludus.gateway.admin import Administration

        assert options.admin_key is not None, "it is set where there are episodes"
        api = Administration(options.episodes, options.admin_key).build(
            options.max_body_bytes, refuse=_refused, no_route=_no_route
        )
        routes += [Route(route.path, api, methods=route.methods) for route in api.routes if isinstance(route, Route)]
    routes.append(Route(DOCUMENT_PATH, _document(api), methods=["GET"]))
    handlers = {HTTPException: _no_route, LudusError: _refused, Exception: _refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    # A missing slash would otherwise be a redirect, which SDKs follow with GET.
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class _Endpoint:
    """ASGI endpoint for the requests of one dialect."""

    name: str
    keys: SessionKeys
    clients: Clients
    options: GatewayOptions
    traffic: Traffic
    counter: TokenCounter | None = None
    """Set: requests ask only how many tokens their prompt has. None: they ask for an answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # Starlette looks through all of them for each; of one that comes twice, the first counts here too.
        headers = dict(reversed(request.headers.items()))
        try:
            secret = request.path_params.get("secret")
            session = self.keys.find(secret, headers, open_mode=self.options.open_mode).session
            body = await read_body(request, self.options.max_body_bytes)
            began_s = time.thread_time()
            value = json_object(body)
            json_s = time.thread_time() - began_s
            if isinstance(asked := value.get("model"), str) and asked:  # else it is read, or refused, with the rest
                session = await session.named(asked)
            if self.counter is not None:
                counts, without_effect = self._count(self.counter, session, headers, value)
            else:
                gateway_request = self._read(session, headers, value)
                self.traffic.add(
                    num_body_bytes=len(body),
                    num_messages=sum(len(request.messages) for request in gateway_request.parsed.requests),
                    num_new_messages=gateway_request.parsed.num_new_messages,
                    json_s=json_s,
                )
                retry_key = self.clients.of(session).attempts.begin(headers, body)
        except ClientDisconnect:
            return
        except AgentError as error:
            await send_error(send, DIALECTS[self.name], error_reply(error))
            return
        if self.counter is not None:
            await send_json(send, 200, counts, without_effect)
        else:
            agent = headers.get(AGENT_HEADER, session.spec.agent)
            await self._answer(gateway_request, agent, retry_key, receive, send)

    async def _answer(
        self, gateway_request: GatewayRequest, agent: str, retry_key: str | None, receive: Receive, send: Send
    ) -> None:
        session = gateway_request.session
        attempts = self.clients.of(session).attempts
        if retry_key is not None or agent:
            parsed = gateway_request.parsed.with_each(partial(_sent_by, agent, retry_key))
            gateway_request = dataclasses.replace(gateway_request, parsed=parsed)
        exchange = Exchange(gateway_request, DIALECTS[self.name], receive, send, self.options.keep_alive_s)
        logger.debug("request.started session=%s stream=%s", session.id, gateway_request.parsed.stream)
        delivered = False
        try:
            delivered = await exchange.run()
        finally:
            attempts.end(retry_key, delivered=delivered)
            self.traffic.end()
            logger.debug("request.ended session=%s delivered=%s", session.id, delivered)

    def _read(self, session: Session, headers: Mapping[str, str], value: JsonObject) -> GatewayRequest:
        dialect = DIALECTS[self.name]
        parsed = dialect.parse(value, session.sampling, self.clients.of(session).read[self.name])
        dropped = [name for name in dialect.vendor.ignored_headers if name in headers]
        pinned = session.pinned_fields(parsed.request)
        without_effect = _without_effect(parsed, session, dropped, pinned)
        if parsed.model not in session.names.own:
            without_effect[MODEL_HEADER] = session.names.name
        return GatewayRequest(session, parsed, without_effect)

    def _count(
        self, counter: TokenCounter, session: Session, headers: Mapping[str, str], value: JsonObject
    ) -> tuple[JsonObject, Headers]:
        parsed = counter.parse(value, session.sampling, self.clients.of(session).read[self.name])
        asked = dataclasses.replace(parsed.request, agent=headers.get(AGENT_HEADER, session.spec.agent))
        return counter.response(session.count_prompt_tokens(asked)), _without_effect(parsed, session)


def _without_effect(
    parsed: ParsedRequest, session: Session, others: Sequence[str] = (), pinned: Sequence[str] = ()
) -> Headers:
    """Headers that list the request's fields that had no effect: those ignored, and those pinned by the session."""
    cannot_act = [parsed.wire_names.get(name, name) for name in session.ignored_fields(parsed.request)]
    found = {"x-ludus-ignored": [*parsed.ignored, *cannot_act, *others], "x-ludus-pinned": pinned}
    return {name: ", ".join(fields) for name, fields in found.items() if fields}


def _sent_by(agent: str, retry_key: str | None, number: int, request: ChatRequest) -> ChatRequest:
    """Request `number` of several in one body, with a retry key of its own: they are not retries of each other."""
    key = f"{retry_key}/{number}" if retry_key is not None and number else retry_key
    return dataclasses.replace(request, agent=agent, retry_key=key)


@dataclass(frozen=True)
class _Models:
    """Endpoint that lists the models which answer requests with the given key."""

    keys: SessionKeys
    options: GatewayOptions

    async def list_all(self, request: Request) -> Response:
        dialect = _dialect_of(request)
        return JSONResponse(dialect.vendor.models([dialect.vendor.model(name) for name in self._names(request)]))

    async def get_one(self, request: Request) -> Response:
        name, names = request.path_params["name"], self._names(request)
        if name not in names:
            raise UNNAMED.unknown(name, names)
        return JSONResponse(_dialect_of(request).vendor.model(name))

    def _names(self, request: Request) -> Sequence[str]:
        # In open mode any key may open a session; reading the list must not open one.
        if self.options.open_mode is None or "secret" in request.path_params:
            return self.keys.find(request.path_params.get("secret"), request.headers).session.model_list
        return self.options.model_names()


def _dialect_of(request: Request) -> Dialect:
    """The dialect for answering a request whose path belongs to no single protocol."""
    return DIALECTS["messages" if VERSION_HEADER in request.headers else "chat"]


def _document(api: FastAPI | None) -> Callable[[Request], Awaitable[Response]]:
    """The handler of the OpenAPI document, which is built on first request. api: the administration, if any."""

    @functools.cache
    def content() -> bytes:
        administration = {} if api is None else api.openapi()
        return json.dumps(openapi_document(MOUNTS, MODELS_PATHS, PROBES, administration)).encode()

    async def answer(_request: Request) -> Response:
        return Response(content(), media_type="application/json")

    return answer


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _refused(request: Request, error: Exception) -> Response:
    reply = error_reply(error)
    return JSONResponse(_dialect_of(request).vendor.error(reply), reply.status)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "unknown_url", 405: "method_not_supported"}.get(error.status_code)
    what = f"{request.method} {request.scope['path']}"  # the URL holds the Host that a client says
    message = f"Invalid URL ({_without_secret(what)}): {error.detail}."
    reply = ErrorReply(error.status_code, message, "invalid_request_error", code)
    return JSONResponse(_dialect_of(request).vendor.error(reply), reply.status, headers=error.headers)


def _without_secret(url: str) -> str:
    before, mark, after = url.partition("/s/")
    return f"{before}{mark}***/{after.partition('/')[2]}" if mark else url
