"""The gateway's ASGI application: routes, keys, headers; everything in a wire protocol is left to its dialect.

Knows: URLs, HTTP headers, status codes.  Knows not: the fields of any protocol, threads, engines.
Every error, unknown routes included, leaves in the protocol's own shape.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI

from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.keys import OpenMode, SessionKeys
from ludus.episodes.session import Session
from ludus.errors import AgentError, LudusError
from ludus.gateway.clients import Clients
from ludus.gateway.dialects.base import DEFAULT_MODEL, Dialect, ErrorReply, ParsedRequest, TokenCounter, error_reply
from ludus.gateway.dialects.table import DIALECTS
from ludus.gateway.exchange import Exchange, GatewayRequest, Headers, send_error, send_json
from ludus.gateway.headers import HeaderBounds
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
# Clients of Anthropic's protocol say which version they speak; all others expect what OpenAI's servers do.
VERSION_HEADER = "anthropic-version"
DOCUMENT_PATH = "/openapi.json"
# Clients ask for these before their first request, to see whether anybody is there.
PROBES = ("/", "/health", "/healthz", "/s/{secret}", "/s/{secret}/", *MOUNTS)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What holds for all requests of one gateway."""

    model_name: str = DEFAULT_MODEL
    open_mode: OpenMode | None = None
    """Gives a session to a key that names none. None: such a key is refused."""
    episodes: Episodes | None = None
    """Opened, rewarded and ended over HTTP by whoever has the admin key. None: there is no administration."""
    admin_key: str | None = None
    """Set where there are `episodes`."""
    max_body_bytes: int = MAX_BODY_BYTES
    keep_alive_s: float = KEEP_ALIVE_S
    """A stream that says nothing for so long is sent a comment."""


DEFAULT_OPTIONS = GatewayOptions()


def check_admin_key(host: str, admin_key: str | None) -> None:
    """Raises UserError where strangers could do what only the admin may.

    admin_key: the one that was given. None: one will be made.
    """
    check_key("a gateway", host, admin_key, variable="LUDUS_ADMIN_KEY")


def build_app(
    keys: SessionKeys, options: GatewayOptions = DEFAULT_OPTIONS, traffic: Traffic | None = None
) -> Starlette:
    """The application that serves the sessions of `keys`; it keeps no other state.

    traffic: counts the requests. None: nobody will ask.
    """
    counted = Traffic() if traffic is None else traffic
    models, clients = _Models(keys, options), Clients()
    # Routes are tried one after the other, so those of the many requests come first.
    routes: list[BaseRoute] = []
    for mount in MOUNTS:
        for name, dialect in DIALECTS.items():
            endpoint = _Endpoint(name, keys, clients, options, counted)
            routes += [Route(mount + path, endpoint, methods=["POST"]) for path in dialect.paths]
    for mount in MOUNTS:
        for name, dialect in DIALECTS.items():
            if dialect.counter is not None:
                count = _Count(name, dialect.counter, keys, clients, options)
                routes += [Route(mount + path, count, methods=["POST"]) for path in dialect.counter.paths]
        for path in MODELS_PATHS:
            routes.append(Route(mount + path, models.list_all, methods=["GET"]))
            routes.append(Route(f"{mount}{path}/{{name:path}}", models.get_one, methods=["GET"]))
    routes += [Route(path, _healthz, methods=["GET"]) for path in PROBES]
    api: FastAPI | None = None
    if options.episodes is not None:
        # Not above: FastAPI takes 0.1 s to load, and few gateways are administered.
        from ludus.gateway.admin import Administration

        assert options.admin_key is not None, "it is set where there are episodes"
        api = Administration(options.episodes, options.admin_key).build(
            options.max_body_bytes, refuse=_refused, no_route=_no_route
        )
        routes += [Route(route.path, api, methods=route.methods) for route in api.routes if isinstance(route, Route)]
    routes.append(Route(DOCUMENT_PATH, _document(api), methods=["GET"]))
    handlers = {HTTPException: _no_route, LudusError: _refused, Exception: _refused}
    app = Starlette(
        routes=routes, middleware=[Middleware(HeaderBounds, dialect_of=_dialect_of)], exception_handlers=handlers
    )
    # A missing slash would otherwise be a redirect, which SDKs follow with GET.
    app.router.redirect_slashes = False
    return app


class _Endpoint:
    """ASGI endpoint for the requests of one dialect."""

    def __init__(
        self, name: str, keys: SessionKeys, clients: Clients, options: GatewayOptions, traffic: Traffic
    ) -> None:
        self._name = name
        self._dialect = DIALECTS[name]
        self._keys = keys
        self._clients = clients
        self._options = options
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # Starlette looks through all of them for each; of one that comes twice, the first counts here too.
        headers = dict(reversed(request.headers.items()))
        try:
            handle = _named(self._keys, request.path_params, headers, self._options)
            body = await read_body(request, self._options.max_body_bytes)
            gateway_request = self._read(handle, headers, body)
        except ClientDisconnect:
            return
        except AgentError as error:
            await send_error(send, self._dialect, error_reply(error))
            return
        await self._answer(gateway_request, body, headers, receive, send)

    async def _answer(
        self, gateway_request: GatewayRequest, body: bytes, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        attempts = self._clients.of(gateway_request.handle).attempts
        retry_key, agent = attempts.begin(headers, body), headers.get(AGENT_HEADER, gateway_request.handle.spec.agent)
        if retry_key is not None or agent:
            gateway_request = dataclasses.replace(
                gateway_request, parsed=gateway_request.parsed.with_each(partial(_sent_by, agent, retry_key))
            )
        exchange = Exchange(gateway_request, self._dialect, receive, send, keep_alive_s=self._options.keep_alive_s)
        logger.debug("request.started session=%s stream=%s", gateway_request.handle.id, gateway_request.parsed.stream)
        delivered = False
        try:
            delivered = await exchange.run()
        finally:
            attempts.end(retry_key, delivered=delivered)
            self._traffic.end()
            logger.debug("request.ended session=%s delivered=%s", gateway_request.handle.id, delivered)

    def _read(self, handle: Handle, headers: Mapping[str, str], body: bytes) -> GatewayRequest:
        session, read = handle.session, self._clients.of(handle).read
        began_s = time.thread_time()
        value = json_object(body)
        json_s = time.thread_time() - began_s
        parsed = self._dialect.parse(value, session.sampling, read[self._name])
        self._traffic.add(
            num_body_bytes=len(body),
            num_messages=sum(len(request.messages) for request in parsed.requests),
            num_new_messages=parsed.num_new_messages,
            json_s=json_s,
        )
        known_models = (self._options.model_name, DEFAULT_MODEL)
        without_effect = _without_effect(parsed, session)
        dropped = [name for name in self._dialect.ignored_headers if name in headers]
        ignored = (*parsed.ignored, *without_effect, *dropped, *(() if parsed.model in known_models else ("model",)))
        return GatewayRequest(
            handle, parsed, _told(ignored, session.pinned_fields(parsed.request)), self._options.model_name
        )


class _Count:
    """ASGI endpoint that counts how many tokens a request's prompt has."""

    def __init__(
        self, name: str, counter: TokenCounter, keys: SessionKeys, clients: Clients, options: GatewayOptions
    ) -> None:
        self._name = name
        self._counter = counter
        self._keys = keys
        self._clients = clients
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            handle = _named(self._keys, request.path_params, request.headers, self._options)
            session = handle.session
            body = json_object(await read_body(request, self._options.max_body_bytes))
            parsed = self._counter.parse(body, session.sampling, self._clients.of(handle).read[self._name])
            asked = dataclasses.replace(parsed.request, agent=request.headers.get(AGENT_HEADER, handle.spec.agent))
            num_tokens = session.count_prompt_tokens(asked)
        except ClientDisconnect:
            return
        except AgentError as error:
            await send_error(send, DIALECTS[self._name], error_reply(error))
            return
        ignored = _told((*parsed.ignored, *_without_effect(parsed, session)), ())
        await send_json(send, 200, self._counter.response(num_tokens), ignored)


def _named(
    keys: SessionKeys, path_params: Mapping[str, str], headers: Mapping[str, str], options: GatewayOptions
) -> Handle:
    return keys.find(path_params.get("secret"), headers, open_mode=options.open_mode)


def _without_effect(parsed: ParsedRequest, session: Session) -> tuple[str, ...]:
    """Options that cannot act on this model, by their names in the protocol."""
    return tuple(parsed.wire_names.get(name, name) for name in session.ignored_fields(parsed.request))


def _sent_by(agent: str, retry_key: str | None, number: int, request: ChatRequest) -> ChatRequest:
    """Requests that are sent together are retries of one another's no more than those that are not."""
    key = f"{retry_key}/{number}" if retry_key is not None and number else retry_key
    return dataclasses.replace(request, agent=agent, retry_key=key)


def _told(ignored: tuple[str, ...], pinned: tuple[str, ...]) -> Headers:
    """Headers that tell an agent which of its fields did not act."""
    told = {"x-ludus-ignored": ignored, "x-ludus-pinned": pinned}
    return {name: ", ".join(fields) for name, fields in told.items() if fields}


class _Models:
    """The model list: the served model under its name and as `default`."""

    def __init__(self, keys: SessionKeys, options: GatewayOptions) -> None:
        self._keys = keys
        self._options = options
        self._names = tuple(dict.fromkeys((options.model_name, DEFAULT_MODEL)))

    async def list_all(self, request: Request) -> Response:
        self._check_key(request)
        dialect = _dialect_of(request)
        return JSONResponse(dialect.models([dialect.model(name) for name in self._names]))

    async def get_one(self, request: Request) -> Response:
        self._check_key(request)
        name = request.path_params["name"]
        if name not in self._names:
            raise AgentError(
                f"The model {name!r} does not exist; there is {', '.join(self._names)}.",
                status=404,
                code="model_not_found",
                param="model",
            )
        return JSONResponse(_dialect_of(request).model(name))

    def _check_key(self, request: Request) -> None:
        # Where any key may open a session, looking at the list must not open one.
        if self._options.open_mode is None or "secret" in request.path_params:
            self._keys.find(request.path_params.get("secret"), request.headers)


def _dialect_of(request: Request) -> Dialect:
    """The dialect in which a request without a protocol of its own is answered."""
    return DIALECTS["messages" if VERSION_HEADER in request.headers else "chat"]


def _document(api: FastAPI | None) -> Callable[[Request], Awaitable[Response]]:
    """The handler of the OpenAPI document, which is made when it is first asked for. api: of the administration."""

    @functools.cache
    def content() -> bytes:
        administration = {} if api is None else api.openapi()
        document = openapi_document(
            mounts=MOUNTS, models_paths=MODELS_PATHS, probes=PROBES, administration=administration
        )
        return json.dumps(document).encode()

    async def answer(_request: Request) -> Response:
        return Response(content(), media_type="application/json")

    return answer


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _refused(request: Request, error: Exception) -> Response:
    told = error_reply(error)
    return JSONResponse(_dialect_of(request).error(told), told.status)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "unknown_url", 405: "method_not_supported"}.get(error.status_code)
    what = f"{request.method} {request.url.path}"
    message = f"Invalid URL ({_without_secret(what)}): {error.detail}."
    told = ErrorReply(error.status_code, message, "invalid_request_error", code)
    return JSONResponse(_dialect_of(request).error(told), told.status, headers=error.headers)


def _without_secret(url: str) -> str:
    before, mark, after = url.partition("/s/")
    return f"{before}{mark}***/{after.partition('/')[2]}" if mark else url
