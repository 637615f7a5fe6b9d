"""The head's registry of the run's processes: their names, addresses and heartbeats, over HTTP.

Knows: roles by name and index, bearer keys, HTTP.  Knows not: launchers, what the roles do.
Invariants: every request needs a key. The key of one start of a process gives access to its own task, its heartbeat and
the service of its role; the run's key gives access to the list and to /stop. Only the latest start of a process is
accepted: an earlier one that was given up and reconnects gets 401, as its key is no longer valid, and ends.

    GET  /config?role=engine&index=0      the run's configuration, and the task of this process
    POST /roles/{name}/{index}            {attempt, url, pid, host, info}: the process is ready
    PUT  /roles/{name}/{index}/beat       {attempt}: heartbeat
    GET  /roles                           all processes
    POST /stop                            the run saves and ends, as after Ctrl-C
         /serve/{service}/…               requests to other services of the head
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ludus.cluster.clock import AwakeClock
from ludus.errors import AgentError, BackendError
from ludus.http.body import MAX_BODY_BYTES, Body, read_model
from ludus.http.keys import digest, is_key, keys_of, new_key
from ludus.http.numbers import Count
from ludus.http.server import HttpServer
from ludus.processes.notifier import Notifier

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

Name = tuple[str, int]
"""Role and index of a process."""
Service = Callable[[Request, int], Awaitable[Response]]
"""Answers a request of the process with this index."""
_OF_THE_RUN = ("/roles", "/stop")
_SENDER = "ludus.sender"
"""Key in a request's scope for the process that sent it."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A process that is ready."""

    name: str
    index: int
    attempt: int
    """How often it was started before."""
    url: str
    """Its address; '' if it takes no requests."""
    pid: int
    host: str
    info: Mapping[str, Any] = field(default_factory=dict)


class _Heartbeat(Body):
    attempt: int


class _Joining(_Heartbeat):
    url: str
    pid: int
    host: str
    info: dict[str, Any]


@dataclass(slots=True)
class _RoleEntry:
    attempt: int
    task: Mapping[str, Any]
    key_digest: bytes
    registered: Registered | None = None
    """None: it is not ready."""
    last_seen_at: float = 0.0
    """Time of the last heartbeat on the registry's clock."""


class Registry:
    """The head's list of its processes. Safe to use from any thread; use as a context manager."""

    def __init__(self, config: str, *, host: str = "127.0.0.1", on_stop: Callable[[], None] = lambda: None) -> None:
        """config: the run's, as text.  host: an address of this machine that the processes reach."""
        self.key = new_key()
        """Gives access to the list of processes and to the end of the run only."""
        self.url = ""
        self._config = config
        self._host = host
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._clock = AwakeClock()
        self._entries: dict[Name, _RoleEntry] = {}
        self._changed = Notifier()
        """Notified when a process is ready, and at the end."""
        self._is_over = False
        self._services: dict[str, Service] = {}
        self._http = HttpServer(self._app(), name="registry", is_guarded=True)

    def __repr__(self) -> str:
        ready = sum(entry.registered is not None for entry in self._entries.values())
        return f"Registry({self._http!r}, expected={len(self._entries)}, ready={ready})"

    def __enter__(self) -> Registry:
        self.url = self._http.start(self._host)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop()
        self._is_over = True
        self._changed.notify()

    def expect(self, name: str, index: int, attempt: int, task: Mapping[str, Any]) -> str:
        """Accept a new start of the process from now on; returns its key.

        task: sent to the process with the configuration.
        """
        key = new_key()
        with self._lock:
            self._entries[name, index] = _RoleEntry(attempt, task, digest(key))
        return key

    def forget(self, name: str, index: int) -> None:
        """No longer accept the process; its next request is answered so that it ends."""
        with self._lock:
            self._entries.pop((name, index), None)

    def find(self, name: str, index: int) -> Registered | None:
        """The process. None: its latest start is not ready."""
        with self._lock:
            entry = self._entries.get((name, index))
            return None if entry is None else entry.registered

    def silence_s(self, name: str, index: int) -> float:
        """Seconds since the last heartbeat of a ready process, without time asleep; 0 if it is not ready."""
        with self._lock:
            entry = self._entries.get((name, index))
            if entry is None or entry.registered is None:
                return 0.0
            return self._clock.now() - entry.last_seen_at

    async def wait(self, name: str, index: int, timeout_s: float | None = None) -> Registered:
        """The process, once it is ready. Raises BackendError after `timeout_s`."""
        try:
            with self._changed.listening() as listener:
                async with asyncio.timeout(timeout_s):
                    while (found := self.find(name, index)) is None:
                        if self._is_over:
                            raise BackendError(f"the run ended before {name}-{index} was ready")
                        await listener.wait()
                    return found
        except TimeoutError:
            raise BackendError(f"{name}-{index} was not ready within {timeout_s} s") from None

    def serve(self, service: str, answer: Service) -> None:
        """From now on let `answer` handle `/serve/{service}/…`, on the registry's event loop, for the role
        `service`."""
        self._services[service] = answer

    # ---- over HTTP

    def _app(self) -> FastAPI:
        # Imported here, because FastAPI takes half a second to load, and most runs have no other process.
        from ludus.http.api import application, guarded

        role, api = "/roles/{name}/{index}", guarded(self._check_key, read_model, most_bytes=MAX_BODY_BYTES)
        api.get("/config")(self._configure)
        api.get("/roles")(self._list)
        api.post(role)(self._join)
        api.put(f"{role}/beat")(self._heartbeat)
        api.post("/stop")(self._stop)
        api.api_route("/serve/{service}/{rest:path}", methods=["GET", "POST", "PUT"])(self._serve)
        return application(api, refuse=_refuse, no_route=_refuse)

    def _check_key(self, request: Request) -> None:
        keys, path = keys_of(request.headers), request.scope["path"]
        is_run = any(is_key(key, digest(self.key)) for key in keys)
        with self._lock:
            processes = [
                name for name, entry in self._entries.items() if any(is_key(key, entry.key_digest) for key in keys)
            ]
        if not is_run and not processes:
            raise AgentError("the key of the run, or of a process of it, is needed, as a bearer token", status=401)
        own = [process for process in processes if _is_own(process, request)]
        if not own and not (is_run and path in _OF_THE_RUN):
            raise AgentError("this key does not open that; a process's opens what is its own", status=403)
        request.scope[_SENDER] = own[0] if own else None

    async def _configure(self, role: str, index: Count) -> Response:
        with self._lock:
            entry = self._entries.get((role, index))
        if entry is None:
            raise AgentError(f"the run has no process {role}-{index}", status=404)
        return JSONResponse({"config": self._config, "task": dict(entry.task)})

    async def _list(self) -> Response:
        with self._lock:
            ready = [entry.registered for entry in self._entries.values() if entry.registered is not None]
        return JSONResponse({"roles": [asdict(registered) for registered in ready]})

    async def _join(self, name: str, index: Count, joining: _Joining) -> Response:
        registered = Registered(name, index, **joining.model_dump())
        with self._lock:
            entry = self._current(name, index, joining.attempt)
            entry.registered, entry.last_seen_at = registered, self._clock.now()
        self._changed.notify()
        logger.info("role.joined role=%s-%d url=%s pid=%d host=%s", name, index, joining.url, joining.pid, joining.host)
        return Response(status_code=204)

    async def _heartbeat(self, name: str, index: Count, beat: _Heartbeat) -> Response:
        with self._lock:
            self._current(name, index, beat.attempt).last_seen_at = self._clock.now()
        return Response(status_code=204)

    def _current(self, name: str, index: int, attempt: int) -> _RoleEntry:
        """The process. Raises AgentError 409 if the request is not from its latest start."""
        entry = self._entries.get((name, index))
        if entry is None or entry.attempt != attempt:
            raise AgentError(f"{name}-{index} was given up, and another start has taken over; end", status=409)
        return entry

    async def _stop(self) -> Response:
        self._on_stop()
        return Response(status_code=202)

    async def _serve(self, service: str, request: Request) -> Response:
        if service not in self._services:
            raise AgentError(f"nothing is served as {service!r} yet", status=404)
        return await self._services[service](request, request.scope[_SENDER][1])


def _is_own(process: Name, request: Request) -> bool:
    """Whether the request concerns only this process, or the service of its role."""
    (name, index), path = process, request.scope["path"]
    own = f"/roles/{name}/{index}"
    is_task = path == "/config" and request.query_params.multi_items() == [("role", name), ("index", str(index))]
    return is_task or path in (own, f"{own}/beat") or path.startswith(f"/serve/{name}/")


async def _refuse(_request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, AgentError) else 404 if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": {"message": str(error)}}, status)
