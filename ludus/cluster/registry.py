"""Where the processes of a run find its head, and the head finds them: names, addresses, signs of life.

Knows: roles by name and number, bearer keys, HTTP.  Knows not: launchers, what the roles do.
Invariants: everything needs the run's key; of each process only its latest start is listened to, so that one that was
given up and comes back is told to end (409).

    GET  /config?role=engine&index=0      the run's configuration, and the task of this process
    POST /roles/{name}/{index}            {attempt, url, pid, host, info}: it is ready
    PUT  /roles/{name}/{index}/beat       {attempt}: it lives
    GET  /roles                           who is there
    POST /stop                            the run saves and leaves, as after Ctrl-C
         /serve/{service}/…               what other services answer here
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

import pydantic
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ludus.cluster.clock import AwakeClock
from ludus.errors import BackendError
from ludus.http.keys import digest, is_key, keys_of, new_key
from ludus.http.server import HttpServer

logger = logging.getLogger(__name__)

Name = tuple[str, int]
"""A role and a number."""
Service = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A process that is ready."""

    name: str
    index: int
    attempt: int
    """How often it was started before."""
    url: str
    """Where it answers; '' if it only asks."""
    pid: int
    host: str
    info: Mapping[str, Any] = field(default_factory=dict)


class _Joining(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    attempt: int
    url: str
    pid: int
    host: str
    info: dict[str, Any] = {}


class _Heartbeat(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    attempt: int


@dataclass(slots=True)
class _RoleEntry:
    attempt: int
    task: Mapping[str, Any]
    registered: Registered | None = None
    """None: it is not ready."""
    last_seen_at: float = 0.0
    """By the registry's clock."""


class Registry:
    """The head's list of its processes. Safe to use from any thread; use as a context manager."""

    def __init__(
        self, config: str, *, host: str = "127.0.0.1", port: int = 0, on_stop: Callable[[], None] = lambda: None
    ) -> None:
        """config: the run's, as text.  host: an address of this machine that the processes reach."""
        self.key = new_key()
        self._config = config
        self._address = (host, port)
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._clock = AwakeClock()
        self._entries: dict[Name, _RoleEntry] = {}
        self._waiting: list[tuple[Name, Future[Registered]]] = []
        self._services: dict[str, Service] = {}
        self._http = HttpServer(self._app(), name="registry", is_guarded=True)

    def __repr__(self) -> str:
        ready = sum(entry.registered is not None for entry in self._entries.values())
        return f"Registry({self._http!r}, expected={len(self._entries)}, ready={ready})"

    def __enter__(self) -> Registry:
        self._http.start(*self._address)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for (name, index), future in waiting:
            if future.set_running_or_notify_cancel():  # False: who waited has left
                future.set_exception(BackendError(f"the run ended before {name}-{index} was ready"))

    @property
    def url(self) -> str:
        return self._http.base_url

    def expect(self, name: str, index: int, attempt: int, task: Mapping[str, Any]) -> None:
        """This start of the process is listened to from now on. task: what it is given, with the configuration."""
        with self._lock:
            self._entries[name, index] = _RoleEntry(attempt, task)

    def forget(self, name: str, index: int) -> None:
        """The process is answered with the end when it next sends something."""
        with self._lock:
            self._entries.pop((name, index), None)

    def find(self, name: str, index: int) -> Registered | None:
        """The process. None: its latest start is not ready."""
        with self._lock:
            entry = self._entries.get((name, index))
            return None if entry is None else entry.registered

    def silence_s(self, name: str, index: int) -> float:
        """For how long nothing was received from a process that is ready; 0 if it is not. Sleep does not count."""
        with self._lock:
            entry = self._entries.get((name, index))
            if entry is None or entry.registered is None:
                return 0.0
            return self._clock.now() - entry.last_seen_at

    async def wait(self, name: str, index: int, timeout_s: float | None = None) -> Registered:
        """The process, once it is ready. Raises BackendError after `timeout_s`."""
        future: Future[Registered] = Future()
        with self._lock:
            entry = self._entries.get((name, index))
            if entry is not None and entry.registered is not None:
                return entry.registered
            self._waiting.append(((name, index), future))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise BackendError(f"{name}-{index} was not ready within {timeout_s} s") from None

    def serve(self, service: str, answer: Service) -> None:
        """From now on `/serve/{service}/…` is answered so, on the registry's event loop."""
        self._services[service] = answer

    # ---- over HTTP

    def _app(self) -> Starlette:
        role = "/roles/{name}/{index:int}"
        return Starlette(
            routes=[
                Route("/config", self._guarded(self._tell), methods=["GET"]),
                Route("/roles", self._guarded(self._list), methods=["GET"]),
                Route(role, self._guarded(self._join), methods=["POST"]),
                Route(f"{role}/beat", self._guarded(self._heartbeat), methods=["PUT"]),
                Route("/stop", self._guarded(self._stop), methods=["POST"]),
                Route("/serve/{service}/{rest:path}", self._guarded(self._serve), methods=["GET", "POST", "PUT"]),
            ]
        )

    def _guarded(self, answer: Service) -> Service:
        expected = digest(self.key)

        async def guarded(request: Request) -> Response:
            if not any(is_key(key, expected) for key in keys_of(request.headers)):
                return _refusal(401, "the key of the run is needed, as a bearer token")
            try:
                return await answer(request)
            except pydantic.ValidationError as error:
                return _refusal(400, str(error))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it

        return guarded

    async def _tell(self, request: Request) -> Response:
        name, index = request.query_params.get("role", ""), request.query_params.get("index", "")
        with self._lock:
            entry = self._entries.get((name, int(index) if index.isdecimal() else -1))
        if entry is None:
            return _refusal(404, f"the run has no process {name}-{index}")
        return JSONResponse({"config": self._config, "task": dict(entry.task)})

    async def _list(self, _request: Request) -> Response:
        with self._lock:
            ready = [entry.registered for entry in self._entries.values() if entry.registered is not None]
        return JSONResponse({"roles": [asdict(registered) for registered in ready]})

    async def _join(self, request: Request) -> Response:
        joining = _Joining.model_validate_json(await request.body())
        name, index = request.path_params["name"], request.path_params["index"]
        registered = Registered(name, index, **joining.model_dump())
        with self._lock:
            entry = self._entries.get((name, index))
            if entry is None or entry.attempt != joining.attempt:
                return _superseded(name, index)
            entry.registered, entry.last_seen_at = registered, self._clock.now()
            found = [future for wanted, future in self._waiting if wanted == (name, index)]
            self._waiting = [each for each in self._waiting if each[0] != (name, index)]
        for future in found:
            if future.set_running_or_notify_cancel():  # False: who waited has left
                future.set_result(registered)
        logger.info("role.joined role=%s-%d url=%s pid=%d host=%s", name, index, joining.url, joining.pid, joining.host)
        return Response(status_code=204)

    async def _heartbeat(self, request: Request) -> Response:
        beat = _Heartbeat.model_validate_json(await request.body())
        name, index = request.path_params["name"], request.path_params["index"]
        with self._lock:
            entry = self._entries.get((name, index))
            if entry is None or entry.registered is None or entry.attempt != beat.attempt:
                return _superseded(name, index)
            entry.last_seen_at = self._clock.now()
        return Response(status_code=204)

    async def _stop(self, _request: Request) -> Response:
        self._on_stop()
        return Response(status_code=202)

    async def _serve(self, request: Request) -> Response:
        answer = self._services.get(request.path_params["service"])
        if answer is None:
            return _refusal(404, f"nothing is served as {request.path_params['service']!r} yet")
        return await answer(request)


def _superseded(name: str, index: int) -> Response:
    return _refusal(409, f"{name}-{index} was given up, and another start has its place; end")


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)
