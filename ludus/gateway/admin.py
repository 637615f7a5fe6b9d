"""Administration over HTTP: sessions opened, looked at, rewarded, ended and exported.

Knows: URLs, keys, the fields of these requests and answers.  Knows not: wire protocols of models, tokens.
Rules: the admin key may do everything. A session's own key may do what concerns that session; asked about any other
session it gets the same answer, whether or not there is one. FastAPI is loaded only by a gateway with administration.
"""

import asyncio
import time
from typing import Annotated, Any, Literal

import fastapi
import pydantic
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.keys import unknown_key
from ludus.episodes.limits import Limits
from ludus.episodes.outcome import Reported
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, BackendError, UserError
from ludus.http.api import Refuse, application, guarded
from ludus.http.body import Body, read_model
from ludus.http.keys import digest, is_key, keys_of
from ludus.runs.interactions import Style, interactions
from ludus.types import Episode

CURRENT = "current"
"""In place of a session's id: the session whose key the request carries."""
SessionId = Annotated[str, fastapi.Path(alias="id")]
Count = Annotated[int, pydantic.Field(strict=True, ge=0)]
Real = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]


class OpenSession(Body):
    """Request to open a session; every field is optional."""

    id: Name | None = None
    agent: str = ""
    group_id: Name | None = None
    group_size: Annotated[int, pydantic.Field(strict=True, ge=1)] | None = None
    metadata: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    max_turns: Count | None = None
    max_tokens: Count | None = None
    max_seconds: Annotated[float, pydantic.Field(strict=True, gt=0, allow_inf_nan=False)] | None = None


class Reward(Body):
    """A reward for one turn, or for the whole conversation."""

    reward: Real
    completion_id: str | None = None
    """None: reward every leaf of the conversation as it is now."""


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
    """The base URL for OpenAI's SDKs."""
    anthropic_base_url: str
    """The base URL for Anthropic's SDKs, which add `/v1` themselves."""


class SessionList(pydantic.BaseModel):
    """The sessions that are open."""

    sessions: list[SessionView]


class Export(pydantic.BaseModel):
    """What was recorded of a session."""

    session: SessionView
    style: Style
    interactions: list[dict[str, Any]]


class Administration:
    """The handlers of the routes."""

    def __init__(self, episodes: Episodes, admin_key: str) -> None:
        self._episodes = episodes
        self._admin_key = digest(admin_key)

    def build(self, max_body_bytes: int, *, refuse: Refuse, no_route: Refuse) -> FastAPI:
        """The FastAPI application with these routes. refuse, no_route: as in `application`."""
        admins = guarded(self._check_admin, read_model, most_bytes=max_body_bytes)
        owners = guarded(self._check_owner, read_model, most_bytes=max_body_bytes)
        admins.post("/sessions", status_code=201)(self.open)
        admins.get("/sessions")(self.list_open)
        owners.get("/sessions/{id}")(self.look)
        owners.post("/sessions/{id}/rewards")(self.reward)
        owners.post("/sessions/{id}/end")(self.end)
        owners.get("/sessions/{id}/export", response_model=Export)(self.export)

        async def refuse_client(request: Request, error: Exception) -> Response:
            # A failing disk is the gateway's fault, not the client's.
            return await refuse(request, BackendError(str(error)) if isinstance(error, UserError) else error)

        return application(admins, owners, refuse=refuse_client, no_route=no_route)

    def _check_admin(self, request: Request) -> None:
        if self._owned(request) is not None:
            raise AgentError("this needs the admin key, not a session's", status=403, code="admin_required")

    def _check_owner(self, request: Request) -> None:
        own, asked = self._owned(request), request.path_params["id"]
        if own is not None and asked not in (own, CURRENT):
            # The same for a session that exists and for one that does not.
            raise AgentError("this key is of another session", status=403, code="session_mismatch")
        request.path_params["id"] = own or asked  # whose it is, for the handler

    def _owned(self, request: Request) -> str | None:
        """Id of the session whose key the request carries; None for the admin key. Raises AgentError 401."""
        keys = keys_of(request.headers)
        if any(is_key(key, self._admin_key) for key in keys):
            return None
        own = next((found for found in map(self._episodes.by_key, keys) if found is not None), None)
        if own is None:
            raise unknown_key(keys[0] if keys else "")
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

    async def list_open(self) -> SessionList:
        return SessionList(sessions=[_view_open(handle) for handle in self._episodes.open_sessions])

    async def look(self, session_id: SessionId) -> SessionView:
        handle = self._episodes.find(session_id)
        return _view_open(handle) if handle is not None else _view_ended(await self._episode(session_id))

    async def reward(self, session_id: SessionId, body: Reward) -> SessionView:
        value = body.reward if body.completion_id is None else {body.completion_id: body.reward}
        await asyncio.to_thread(self._episodes.reward, session_id, value)
        return await self.look(session_id)

    async def end(self, session_id: SessionId, body: EndSession) -> SessionView:
        handle = self._episodes.find(session_id)
        if handle is None:  # it may be ended again
            return _view_ended(await self._episode(session_id))
        return _view_ended(await self._episodes.end(handle, Reported(body.outcome, body.reason), metrics=body.metrics))

    async def export(self, session_id: SessionId, style: Style = "individual") -> Response:
        handle = self._episodes.find(session_id)
        episode = await self._episode(session_id) if handle is None else self._episodes.episode_so_far(handle)
        rows = await asyncio.to_thread(interactions, episode, style)
        content = Export.model_construct(session=await self.look(session_id), style=style, interactions=rows)
        # On a thread: there may be millions of tokens, and others are answered meanwhile.
        return Response(await asyncio.to_thread(content.model_dump_json), media_type="application/json")

    async def _episode(self, session_id: str) -> Episode:
        return await asyncio.to_thread(self._episodes.episode, session_id)


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
