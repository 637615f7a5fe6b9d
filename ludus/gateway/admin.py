"""Administration over HTTP: sessions opened, looked at, rewarded, ended and exported.

Knows: URLs, keys, the fields of these requests and answers.  Knows not: wire protocols of models, tokens.
Rules: the admin key may do everything; a session's own key what concerns that session, and it is told the same of
every other, whether there is one or not. The table of routes is also what the OpenAPI document is made of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pydantic
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle, SessionSpec
from ludus.episodes.keys import unknown_key
from ludus.episodes.limits import Limits
from ludus.episodes.outcome import Told
from ludus.errors import AgentError, BackendError, UserError
from ludus.http.body import Body, read_body, read_model
from ludus.http.keys import check_key, digest, is_key, keys_of
from ludus.runs.interactions import STYLES, interactions
from ludus.types import Episode

CURRENT = "current"
"""Stands for the session whose key the request carries."""
Access = Literal["admin", "own"]
Count = Annotated[int, pydantic.Field(strict=True, ge=0)]
Real = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]


class OpenSession(Body):
    """A session to be opened; every field is optional."""

    id: Name | None = None
    agent: str = ""
    group_id: Name | None = None
    group_size: Annotated[int, pydantic.Field(strict=True, ge=1)] | None = None
    metadata: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    max_turns: Count | None = None
    max_tokens: Count | None = None
    max_seconds: Annotated[float, pydantic.Field(strict=True, gt=0, allow_inf_nan=False)] | None = None


class Reward(Body):
    """A reward of a turn, or of the conversation."""

    reward: Real
    completion_id: str | None = None
    """None: every leaf of the conversation as it is now."""


class EndSession(Body):
    """How a session ended."""

    outcome: Literal["ok", "rejected", "failed"] = "ok"
    reason: str = ""
    metrics: dict[str, Real] = pydantic.Field(default_factory=dict)


class SessionView(pydantic.BaseModel):
    """A session as its owner may see it."""

    id: str
    state: Literal["open", "ended"]
    outcome: str | None
    reason: str
    agent: str
    group_id: str | None
    metadata: dict[str, Any]
    num_turns: int
    num_sampled_tokens: int
    rewards: dict[str, float]
    opened_at: float


class OpenedSession(SessionView):
    """A new session; the key is shown this once."""

    key: str
    base_url: str
    """For OpenAI's SDKs."""
    anthropic_base_url: str
    """For Anthropic's, which add `/v1` themselves."""


class SessionList(pydantic.BaseModel):
    """The sessions that are open."""

    sessions: list[SessionView]


class Export(pydantic.BaseModel):
    """What was recorded of a session."""

    session: SessionView
    style: Literal["individual", "concat"]
    interactions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One route: who may use it, what it takes, what it answers."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    access: Access
    body: type[Body] | None
    answer: type[pydantic.BaseModel]
    handler: Callable[..., Awaitable[pydantic.BaseModel]]
    """Method of `Administration` that answers."""
    status: int = 200
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters of the URL and their values, the default first."""


class Administration:
    """The handlers of `ROUTES`."""

    def __init__(self, episodes: Episodes, admin_key: str, max_body_bytes: int) -> None:
        self._episodes = episodes
        self._admin_key = digest(admin_key)
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[BaseRoute]:
        return [Route(route.path, self._endpoint(route), methods=[route.method]) for route in ROUTES]

    def _endpoint(self, route: AdminRoute) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session_id = self._allowed(request, route.access)
            arguments: list[Any] = [session_id] if route.access == "own" else []
            if route.body is not None:
                arguments.append(read_model(route.body, await read_body(request, self._max_body_bytes)))
            try:
                told = await route.handler(self, request, *arguments)
            except UserError as error:  # a disk that refuses is the fault of whoever runs the gateway, not of a client
                raise BackendError(str(error)) from error
            # On a thread: an export may hold millions of tokens, and others are answered meanwhile.
            content = await asyncio.to_thread(told.model_dump_json)
            return Response(content, route.status, media_type="application/json")

        return answer

    def _allowed(self, request: Request, access: Access) -> str:
        """Id of the session that the request is about. Raises AgentError 401 or 403."""
        spec: str = request.path_params.get("id", "")
        keys = keys_of(request.headers)
        if any(is_key(key, self._admin_key) for key in keys):
            return spec
        own = next((found for found in map(self._episodes.by_key, keys) if found is not None), None)
        if own is None:
            raise unknown_key(keys[0] if keys else "")
        if access == "admin":
            raise AgentError("this needs the admin key, not a session's", status=403, code="admin_required")
        if spec not in (own, CURRENT):
            # The same for a session that exists and for one that does not.
            raise AgentError("this key is of another session", status=403, code="session_mismatch")
        return own

    async def open(self, request: Request, body: OpenSession) -> OpenedSession:
        if body.id == CURRENT:
            raise AgentError(f"id={CURRENT!r} stands for the session of a key", code="invalid_value", param="id")
        deadline_at = None if body.max_seconds is None else time.monotonic() + body.max_seconds
        spec = SessionSpec(
            id=body.id,
            agent=body.agent,
            group_id=body.group_id,
            group_size=body.group_size,
            metadata=body.metadata,
            limits=Limits(body.max_turns, body.max_tokens, deadline_at),
        )
        handle, key = await self._episodes.open_new(spec)
        root = f"{str(request.base_url).rstrip('/')}/s/{key}"
        view = _view_open(handle)
        return OpenedSession(**view.model_dump(), key=key, base_url=f"{root}/v1", anthropic_base_url=root)

    async def list_open(self, request: Request) -> SessionList:
        return SessionList(sessions=[_view_open(handle) for handle in self._episodes.open_sessions])

    async def look(self, request: Request, session_id: str) -> SessionView:
        return await self._view(session_id)

    async def reward(self, request: Request, session_id: str, body: Reward) -> SessionView:
        value = body.reward if body.completion_id is None else {body.completion_id: body.reward}
        await asyncio.to_thread(self._episodes.reward, session_id, value)
        return await self._view(session_id)

    async def end(self, request: Request, session_id: str, body: EndSession) -> SessionView:
        handle = self._episodes.find(session_id)
        if handle is None:  # it may be ended again
            return _view_ended(await self._episode(session_id))
        return _view_ended(await self._episodes.end(handle, Told(body.outcome, body.reason), metrics=body.metrics))

    async def export(self, request: Request, session_id: str) -> Export:
        style = request.query_params.get("style", STYLES[0])
        if style not in STYLES:
            raise AgentError(
                f"style={style!r} is unknown; known: {', '.join(STYLES)}", code="invalid_value", param="style"
            )
        handle = self._episodes.find(session_id)
        episode = await self._episode(session_id) if handle is None else self._episodes.episode_so_far(handle)
        rows = await asyncio.to_thread(interactions, episode, style)
        return Export.model_construct(session=await self._view(session_id), style=style, interactions=rows)

    async def _view(self, session_id: str) -> SessionView:
        handle = self._episodes.find(session_id)
        return _view_open(handle) if handle is not None else _view_ended(await self._episode(session_id))

    async def _episode(self, session_id: str) -> Episode:
        return await asyncio.to_thread(self._episodes.episode, session_id)


ROUTES = (
    AdminRoute("POST", "/sessions", "Open a session", "admin", OpenSession, OpenedSession, Administration.open, 201),
    AdminRoute("GET", "/sessions", "The open sessions", "admin", None, SessionList, Administration.list_open),
    AdminRoute("GET", "/sessions/{id}", "A session", "own", None, SessionView, Administration.look),
    AdminRoute("POST", "/sessions/{id}/rewards", "Reward a turn", "own", Reward, SessionView, Administration.reward),
    AdminRoute("POST", "/sessions/{id}/end", "End a session", "own", EndSession, SessionView, Administration.end),
    AdminRoute(
        *("GET", "/sessions/{id}/export", "What was recorded", "own", None, Export, Administration.export),
        query={"style": STYLES},
    ),
)


def check_admin_key(host: str, admin_key: str | None) -> None:
    """Raises UserError where strangers could do what only the admin may.

    admin_key: the one that was given. None: one will be made.
    """
    check_key("a gateway", host, admin_key, variable="LUDUS_ADMIN_KEY")


def _view_open(handle: Handle) -> SessionView:
    stats, spec = handle.session.stats(), handle.spec
    return SessionView(
        id=handle.id,
        state="open",
        outcome=None,
        reason="",
        agent=spec.agent,
        group_id=spec.group_id,
        metadata=dict(spec.metadata),
        num_turns=stats.num_turns,
        num_sampled_tokens=stats.num_tokens,
        rewards=handle.rewards.by_turn,
        opened_at=handle.opened_at,
    )


def _view_ended(episode: Episode) -> SessionView:
    turns = episode.session.turns
    return SessionView(
        id=episode.id,
        state="ended",
        outcome=episode.outcome.kind,
        reason=episode.outcome.reason,
        agent=turns[0].agent if turns else "",
        group_id=None if episode.group_id == episode.id else episode.group_id,
        metadata=dict(episode.metadata),
        num_turns=len(turns),
        num_sampled_tokens=episode.session.num_sampled_tokens,
        rewards=dict(episode.rewards),
        opened_at=episode.started_at,
    )
