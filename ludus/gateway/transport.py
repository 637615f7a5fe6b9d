"""HTTP clients whose requests run the gateway's application without a socket, chunk by chunk.

Knows: ASGI, two event loops, the transport interface that httpx and httpx2 share.  Knows not: routes, protocols.
The application runs on the gateway's loop; the client may be awaited on any other. Each side uses only its own loop.

    client's loop                                  gateway's loop
    request ────────── run_coroutine_threadsafe ──▶ app(scope, receive, send)
    queue   ◀───────── call_soon_threadsafe ─────── send, which waits for one of NUM_CHUNKS free slots
    chunk taken ────── call_soon_threadsafe ──────▶ a slot is free again
    closed early ───── future.cancel ─────────────▶ the application's task is cancelled
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import re
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Scope

from ludus.gateway.server import GatewayServer

ClientKind = Literal["auto", "httpx", "httpx2"]

NUM_CHUNKS = 64  # chunks on the way to a slow client: some seconds of tokens, some kilobytes
TIMEOUT_S = 600.0  # what OpenAI's SDK allows between two chunks; httpx's own 5 s are less than one long prompt takes


class ClientFactory:
    """Makes clients of one server, one for each agent: closing one leaves the others open.

    They reach the server without a socket, and other hosts as usual. Until the factory is closed they share what is
    costly to make and the connections to other hosts.
    """

    def __init__(self, server: GatewayServer, kind: ClientKind = "auto") -> None:
        """kind: "auto" selects the module that the installed OpenAI SDK uses: each refuses the other's clients."""
        self._http = importlib.import_module(sdk_http_module() if kind == "auto" else kind)
        self._transport = _SharedTransport(server, self._http)

    def open(self) -> Any:
        """A new AsyncClient of httpx or httpx2."""
        return self._http.AsyncClient(transport=self._transport, timeout=TIMEOUT_S)

    async def aclose(self) -> None:
        """Close the connections to other hosts."""
        await self._transport.close_outside()


def sdk_http_module(sdk: str = "openai") -> Literal["httpx", "httpx2"]:
    """Name of the HTTP module whose clients the installed SDK accepts; httpx if the SDK is not installed."""
    try:
        requirements = importlib.metadata.requires(sdk) or []
    except importlib.metadata.PackageNotFoundError:
        return "httpx"
    names = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in requirements}
    return "httpx2" if "httpx2" in names else "httpx"


class InProcessTransport:
    """A transport for the AsyncClient of `http` (httpx or httpx2). Safe to use from several event loops."""

    def __init__(self, server: GatewayServer, http: ModuleType) -> None:
        self._app = server.app
        self._app_loop = server.loop
        self._origin = _origin(server.base_url)
        self._http = http
        # The modules check their streams by class, and the class is the module's own.
        self._stream_class = type("InProcessStream", (_Stream, http.AsyncByteStream), {})
        self._outside: Any = None
        """Transport for other hosts. None until the first such request: making it reads all root certificates."""

    def __repr__(self) -> str:
        return f"InProcessTransport({self._origin}, {self._http.__name__})"

    async def handle_async_request(self, request: Any) -> Any:
        if _origin(str(request.url)) != self._origin:
            if self._outside is None:
                self._outside = self._http.AsyncHTTPTransport()
            return await self._outside.handle_async_request(request)
        body = await request.aread()
        flow = _Flow(self._app, self._app_loop, _scope(request), body)
        timeout_s = request.extensions.get("timeout", {}).get("read")
        stream = self._stream_class(flow, self._http, request, timeout_s)
        try:
            flow.start()
        except RuntimeError as error:
            raise self._http.ConnectError(f"the gateway has stopped: {error}", request=request) from error
        try:
            head = await stream.next_message()
        except BaseException:
            flow.abandon()
            raise
        if head is None:
            raise self._http.RemoteProtocolError("the gateway ended the request without an answer", request=request)
        return self._http.Response(head["status"], headers=head["headers"], stream=stream, request=request)

    async def close_outside(self) -> None:
        if self._outside is not None:
            await self._outside.aclose()

    async def aclose(self) -> None:
        await self.close_outside()

    async def __aenter__(self) -> InProcessTransport:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class _SharedTransport(InProcessTransport):
    """A transport shared by several clients: it stays open when one of them is closed."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _End:
    """The application has returned. `error`: why it did so without finishing its answer."""

    error: str | None = None


class _Stream:
    """The body of a response, read on the client's loop. Closing it early cancels the application's task."""

    def __init__(self, flow: _Flow, http: ModuleType, request: Any, timeout_s: float | None) -> None:
        self._flow = flow
        self._http = http
        self._request = request
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next_message()
            if message is None:
                raise self._http.RemoteProtocolError("the answer ended before it was complete", request=self._request)
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def next_message(self) -> Message | None:
        """The application's next message. None: it has ended."""
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._flow.take()
        except TimeoutError:
            self._flow.abandon()
            raise self._http.ReadTimeout(f"no data for {self._timeout_s} s", request=self._request) from None
        if isinstance(message, _End) and message.error is not None:
            raise self._http.ReadError(message.error, request=self._request)
        return None if isinstance(message, _End) else message

    async def aclose(self) -> None:
        self._flow.abandon()


@dataclass(eq=False)
class _Flow:
    """One request on its way through both loops. Created on the client's loop."""

    app: ASGIApp
    app_loop: asyncio.AbstractEventLoop
    scope: Scope
    body: bytes
    client_loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _messages: asyncio.Queue[Message | _End] = field(default_factory=asyncio.Queue)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_CHUNKS))
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _running: Future[None] | None = None
    _is_body_sent: bool = False

    # ---- on the client's loop

    def start(self) -> None:
        running = self._run()
        try:
            self._running = asyncio.run_coroutine_threadsafe(running, self.app_loop)
        except RuntimeError:
            running.close()
            raise
        # Also called when the task is dropped or cancelled before it could send its end itself.
        self._running.add_done_callback(lambda _: self._deliver(_End()))

    async def take(self) -> Message | _End:
        message = await self._messages.get()
        if not isinstance(message, _End) and not self.app_loop.is_closed():
            self.app_loop.call_soon_threadsafe(self._slots.release)
        return message

    def abandon(self) -> None:
        """Cancel the application, unless it has ended: nobody waits for the rest."""
        if self._running is not None:
            self._running.cancel()

    # ---- on the gateway's loop

    async def _run(self) -> None:
        try:
            await self.app(self.scope, self._receive, self._send)
        except Exception as error:
            # The boundary of the request: what a server would log and turn into a closed connection.
            self._deliver(_End(f"{type(error).__name__}: {error}"))
        finally:
            self._has_ended.set()

    async def _receive(self) -> Message:
        if self._is_body_sent:
            await self._has_ended.wait()
            return {"type": "http.disconnect"}
        self._is_body_sent = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def _send(self, message: Message) -> None:
        await self._slots.acquire()
        if not self._deliver(message):
            raise OSError("the client's event loop is closed")

    def _deliver(self, message: Message | _End) -> bool:
        """Pass `message` to the client's loop. Returns whether that loop still runs."""
        try:
            self.client_loop.call_soon_threadsafe(self._messages.put_nowait, message)
        except RuntimeError:
            return False
        return True


def _scope(request: Any) -> Scope:
    url = request.url
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.split(b"?")[0],
        "query_string": url.query,
        "server": (url.host, url.port),
        "client": None,
        "root_path": "",
    }


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
