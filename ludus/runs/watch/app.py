"""The live page of runs and its API, as a Starlette application.

Knows: routes, the access check.  Knows not: the content of runs.
Invariants: only the empty page is served without the key; answers are JSON that every browser can parse; no request
changes a run: models' answers are stored beside it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ludus.errors import AgentError, LudusError, UserError
from ludus.http.body import read_body
from ludus.runs.watch.access import Access, secured
from ludus.runs.watch.compare import compare_runs
from ludus.runs.watch.encode import to_json
from ludus.runs.watch.events import events_of
from ludus.runs.watch.folder import RunsFolder
from ludus.runs.watch.page import STATIC
from ludus.runs.watch.parameters import (
    MOST_TOKENS,
    Parameters,
    check_known,
    count,
    episode_query,
    names,
    page,
)
from ludus.runs.watch.position import Position
from ludus.runs.watch.post import posted
from ludus.runs.watch.question import Sampler
from ludus.runs.watch.run import NotThereError, WatchedRun

logger = logging.getLogger(__name__)

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
_MOST_SEGMENTS = 12
_MOST_BODY_BYTES = 2**22  # of a conversation
_FRESH = {"cache-control": "no-store", "x-accel-buffering": "no"}  # a proxy hands on events as they come
_NOBODY = "Nothing here can sample: open the run with `ludus watch`."


def watch_app(folder: RunsFolder, key: str) -> Starlette:
    """The application. key: without it a client gets only the empty page."""
    access = Access(key)

    async def index(request: Request) -> Response:
        response = await asyncio.to_thread(_static, "index.html")
        access.remember(request, response)
        return secured(response)

    async def static(request: Request) -> Response:
        return secured(await asyncio.to_thread(_static, request.path_params["name"]))

    async def api(request: Request) -> Response:
        try:
            if not access.is_allowed(request):
                raise AgentError("This page is opened with the link that `ludus watch` printed.", status=401)
            return secured(await _answer(folder, request))
        except Exception as error:  # the boundary of a request: it becomes one sentence for its sender
            return secured(_refusal(error))

    return Starlette(
        routes=[
            Route("/", index),
            Route("/static/{name}", static),
            Route("/api/{rest:path}", api, methods=["GET", "POST"]),
        ]
    )


def api_routes(folder: RunsFolder, path: str, given: Parameters) -> Any:
    """The JSON-able answer to a GET of `/api/…`; path: what follows `/api/`.

    Raises NotThereError, AgentError, or UserError if a file cannot be read.
    """
    segments = [unquote(each) for each in path.split("/")]
    match segments:
        case ["runs"]:
            check_known(given, ())
            return {"runs": folder.outlines()}
        case ["compare"]:
            check_known(given, ("a", "b", "step_a", "step_b"))
            sides = [(folder.run(given.get(side, "")), count(given, f"step_{side}")) for side in ("a", "b")]
            return compare_runs(*sides[0], *sides[1])
        case ["runs", run_id, *rest] if len(segments) <= _MOST_SEGMENTS:
            return _of_run(folder.run(run_id), rest, given, folder.sampler)
    raise NotThereError("there is no such route")


def _of_run(run: WatchedRun, rest: Sequence[str], given: Parameters, sampler: Sampler | None) -> Any:
    match rest:
        case []:
            check_known(given, ())
            overview = run.overview()
            elsewhere = {} if sampler is None else sampler.elsewhere
            overview["models"] += [
                {"name": name, "label": f"{name} at {address}", "served_by": address}
                for name, address in elsewhere.items()
            ]
            return {**overview, "can_sample": sampler is not None}
        case ["metrics"]:
            check_known(given, ("names",))
            return run.metrics(names(given))
        case ["episodes"]:
            query, offset, limit = episode_query(given)
            return run.episodes(query, offset=offset, limit=limit)
        case ["groups"]:
            check_known(given, ("step",))
            return run.groups(count(given, "step"))
        case ["episodes", episode, "turns", turn, "tokens"]:
            check_known(given, ("offset", "limit"))
            offset, limit = page(given, default=2000, most=MOST_TOKENS)
            return run.tokens(episode, turn, offset=offset, limit=limit)
        case ["episodes", episode, "turns", turn, "alternatives", i]:
            check_known(given, ())
            return run.alternatives(episode, turn, count({"i": i}, "i") or 0)
    check_known(given, ())
    match rest:
        case ["health"]:
            return run.health()
        case ["ledger"]:
            return run.ledger()
        case ["failures"]:
            return run.failures()
        case ["forks"]:
            return run.forks()
        case ["episodes", episode]:
            return run.episode(episode)
        case ["steps", step]:
            return run.step(count({"step": step}, "step") or 0)
        case ["branches"]:
            return {"branches": run.branches.listed()}
        case ["branches", branch]:
            found = run.branches.one(branch)
            if found is None:
                raise NotThereError(f"there is no branch {branch!r} of the run")
            return found
        case ["episodes", episode, "turns", turn, "messages"]:
            return run.messages(episode, turn)
    raise NotThereError("there is no such route")


async def _answer(folder: RunsFolder, request: Request) -> Response:
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("latin-1").partition("?")[0].removeprefix("/api/")
    segments = path.split("/")
    if request.method == "POST":
        return await _posted(folder, [unquote(each) for each in segments], request)
    if len(segments) == 3 and segments[0] == "runs" and segments[2] == "events":
        run = await asyncio.to_thread(folder.run, unquote(segments[1]))
        heard = Position.parse(request.headers.get("last-event-id", ""))
        return StreamingResponse(events_of(run, heard), media_type="text/event-stream", headers=_FRESH)
    found = await asyncio.to_thread(_body, api_routes, folder, path, dict(request.query_params))
    return Response(found, media_type="application/json", headers=_FRESH)


async def _posted(folder: RunsFolder, segments: Sequence[str], request: Request) -> Response:
    if segments[0] != "runs" or not 2 < len(segments) <= _MOST_SEGMENTS:
        raise NotThereError("there is no such route")
    if folder.sampler is None:
        raise AgentError(_NOBODY, status=501)
    run = await asyncio.to_thread(folder.run, segments[1])
    found = await posted(run, folder.sampler, segments[2:], await read_body(request, _MOST_BODY_BYTES))
    if isinstance(found, dict):
        return Response(to_json(found), media_type="application/json", headers=_FRESH)
    return StreamingResponse(found, media_type="text/event-stream", headers=_FRESH)


def _body(ask: Callable[..., Any], *args: Any) -> bytes:
    return to_json(ask(*args)).encode()


def _static(name: str) -> Response:
    """A file of the page's bundle, which has no subfolders."""
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in _TYPES or not path.is_file():
        return Response('{"detail": "There is no such file."}', 404, media_type="application/json")
    return Response(path.read_bytes(), headers={"content-type": _TYPES[path.suffix], "cache-control": "no-cache"})


def _refusal(error: Exception) -> Response:
    if isinstance(error, AgentError):
        status, detail = error.status, error.message
    elif isinstance(error, NotThereError):
        status, detail = 404, str(error)
    elif isinstance(error, UserError):  # a file that cannot be read
        status, detail = 500, str(error)
    else:
        logger.error("watch.failed", exc_info=error)
        status = 500
        detail = str(error) if isinstance(error, LudusError) else f"{type(error).__name__}: the watcher's log says more"
    return Response(json.dumps({"detail": detail}), status, media_type="application/json")
