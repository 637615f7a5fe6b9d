"""Runs an ASGI application as a server, on a thread and an event loop of its own.

Knows: uvicorn, threads.  Knows not: the application.
Because nothing else runs on the server's loop, a blocking client that holds up another loop is still answered.
Invariant: an application that needs no key is served to this machine only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import resource
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.errors import InternalError, UserError
from ludus.http.connection import Watched, connection_class
from ludus.http.guard import Guard
from ludus.http.keys import is_loopback
from ludus.http.tls import Tls

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that may wait to be accepted: thousands of agents begin at once
IDLE_CONNECTION_S = 60  # longer than clients keep an idle connection (httpx: 5 s), so that it is never we who close it
STOP_GRACE_S = 1  # requests in flight get this long at `stop`, then they are cancelled
_CUT_OFF_S = 0.2  # a connection that is cut off is gone in a moment
_POLL_S = 0.002  # between two checks whether they are answered: a connection without a request is gone at once
_DATE_EVERY_S = 1  # how exact an answer's date is
_DESCRIPTORS = (65_536, 10_240)  # files and connections that a process may have open; macOS allows the second at most
Beside = Callable[[], Coroutine[Any, Any, None]]
"""A coroutine that runs on the server's loop from start until stop, which cancels it."""


class HttpServer:
    """Serves `app` from `start` to `stop`. Safe to use from any thread."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        beside: Beside | None = None,
        is_guarded: bool = False,
        tls: Tls | None = None,
        takes_any_body: bool = False,
    ) -> None:
        """name: of the server, in messages.  beside: runs on the same loop, if given.  tls: None: plain HTTP.

        is_guarded: without a key nothing can be learned or changed; only such an application is served to others.
        takes_any_body: also accept bodies that are not JSON.
        """
        self.app = app
        """May be replaced before `start`."""
        self._name = name
        self._beside = beside
        self._is_guarded = is_guarded
        self._tls = tls
        self._takes_any_body = takes_any_body
        self._uvicorn: _Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._base_url: str | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the application runs on."""
        if self._loop is None:
            raise InternalError(f"the {self._name} is not running; call start() first")
        return self._loop

    @property
    def base_url(self) -> str:
        """The address without a path, as returned by `start`."""
        if self._base_url is None:
            raise InternalError(f"the {self._name} is not running; call start() first")
        return self._base_url

    def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start serving; returns the base URL once requests are accepted. Port 0: any free port.

        Raises UserError if the port is taken, or if others could reach an application that needs no key.
        """
        if self._thread is not None:
            raise InternalError(f"the {self._name} is running already")
        if not (self._is_guarded or is_loopback(host)):
            raise UserError(
                f"the {self._name} wants no key, and on {host} other machines could use it; let it listen on 127.0.0.1"
            )
        allow_descriptors()
        listener = listen(host, port)
        scheme = "http" if self._tls is None else "https"
        self._base_url = f"{scheme}://{_host_in_url(host)}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            Guard(self.app, host=host, takes_any_body=self._takes_any_body),
            http=connection_class(),
            loop="none",  # ours, below
            lifespan="off",
            proxy_headers=False,  # nobody asks where a request came from
            server_header=False,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=IDLE_CONNECTION_S,
            ssl_certfile=None if self._tls is None else self._tls.cert,
            ssl_keyfile=None if self._tls is None else self._tls.key,
        )
        self._uvicorn = _Server(config)
        is_running = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(self._uvicorn, listener, is_running), name=f"ludus-{self._name}", daemon=True
        )
        self._thread.start()
        is_running.wait()
        logger.info("%s.started url=%s", self._name, self._base_url)
        return self._base_url

    def stop(self) -> None:
        """Cancel requests in flight; returns once the thread has ended. Stopping twice is allowed."""
        if self._thread is None or self._uvicorn is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself: what ran beside it failed
            self.loop.call_soon_threadsafe(self._uvicorn.end)
        self._thread.join()
        self._thread = self._uvicorn = self._loop = self._base_url = None
        logger.info("%s.stopped", self._name)

    def _serve(self, server: _Server, listener: socket.socket, is_running: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            # The socket listens already: who connects from here on is accepted as soon as the server is up.
            is_running.set()
            async with asyncio.TaskGroup() as group:
                beside = None if self._beside is None else group.create_task(self._beside())
                await server.serve(sockets=[listener])
                if beside is not None:
                    beside.cancel()

        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"HttpServer({self._name}, {self._base_url or 'stopped'})"


class _Server(uvicorn.Server):
    """uvicorn's server, except that it stops at once: uvicorn polls ten times a second, then sleeps 0.1 s more."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()
        app = cast(ASGIApp, config.app)

        async def until_cancelled(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if not self._ending.is_set():
                    raise
                await self._cut_off(scope)

        config.app = until_cancelled  # uvicorn tells what such a function is; of a method it does not

    async def _cut_off(self, scope: Scope) -> None:
        """Close the connection of a request that `shutdown` has cancelled. While it is open, uvicorn takes that for a
        fault of the application, and logs it."""
        connections = self.server_state.connections
        found = [each for each in connections if isinstance(each, Watched) and each.is_of(scope)]
        for connection in found:
            connection.cut_off()
        ends_at = asyncio.get_running_loop().time() + _CUT_OFF_S
        while not connections.isdisjoint(found) and asyncio.get_running_loop().time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def end(self) -> None:
        """Stop serving; called on the server's own loop."""
        self._ending.set()

    async def main_loop(self) -> None:
        try:
            while not self._ending.is_set():
                await self.on_tick(0)  # tick 0 writes the date that answers carry
                for connection in list(self.server_state.connections):
                    assert isinstance(connection, Watched), "of the class that the server was given"
                    connection.check(asyncio.get_running_loop().time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DATE_EVERY_S):
                        await self._ending.wait()
        finally:
            for server in self.servers:
                server.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + STOP_GRACE_S
        # uvicorn has no event for a connection that is gone.
        while (state.connections or state.tasks) and loop.time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        for task in state.tasks:
            task.cancel()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=2 * _CUT_OFF_S)


def allow_descriptors() -> None:
    """Raise this process's limit on open files as far as it may: every connection is one, and macOS begins with 256,
    Linux with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in _DESCRIPTORS:
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        with contextlib.suppress(ValueError, OSError):  # more than the system allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Cannot listen on {host}:{port}: {error}. Choose another port; 0 takes any free one."
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which this one does not; without
    # it the end of every answer waits some 40 ms for the client's system to acknowledge the beginning.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop if it is installed, else asyncio's: half as fast, and the same otherwise."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _host_in_url(host: str) -> str:
    """The host for URLs with which clients on this machine reach a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable
