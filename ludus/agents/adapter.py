"""The common interface of all agents: an adapter that plays one row in the context of one episode.

Knows: what an episode provides for its agent.  Knows not: how any family plays, groups, training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ludus.agents.actors import Actor, find_actor
from ludus.agents.http_clients import SharedClients
from ludus.agents.settings import ActorSettings
from ludus.episodes.session import Session
from ludus.errors import UserError
from ludus.runs.spans import SpanLog, collect_spans


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """Identifies the episode that is played."""

    episode_id: str
    task_id: str
    """Id of the row."""
    group_id: str
    step: int | None = None
    """The training step it is played for. None: for none."""
    is_eval: bool = False


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """What an episode provides for its agent."""

    base_url: str
    api_key: str
    http_client: Any
    """An httpx (or httpx2) client that reaches the base_url. It belongs to the episode and is closed at its end."""
    session: Session | None = None
    """The session, for asking the model by messages or token ids. None: it is in another process."""
    info: EpisodeInfo = EpisodeInfo("", "", "")
    deadline_at: float | None = None
    """time.monotonic() after which the model no longer answers. None: no deadline."""
    spans: SpanLog = field(default_factory=SpanLog)
    """What the agent did besides asking the model."""
    agent_metrics: dict[str, list[float]] = field(default_factory=dict)
    """Values that the agent counted, by name; their means become metrics of the episode."""
    clients: SharedClients = field(default_factory=SharedClients)
    """HTTP clients for other hosts, shared with the other episodes on this event loop."""
    actors: Mapping[str, ActorSettings] = field(default_factory=dict)
    """By name: the other models that take part and are not trained."""

    def actor(self, name: str) -> Actor:
        """The actor with this name. Raises UserError if there is none, or if its key is missing."""
        return find_actor(name, self.actors, self.clients)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the `current_episode()` for the block and for the tasks and threads started in it."""
        token = _CURRENT.set(self)
        try:
            with collect_spans(self.spans):
                yield
        finally:
            _CURRENT.reset(token)


class AgentAdapter(Protocol):
    """An agent of any family, ready to play. All of it runs on the agents' event loop."""

    @property
    def name(self) -> str: ...

    async def setup(self) -> None:
        """Called once, before the first episode."""

    async def close(self) -> None:
        """Called once, after the last episode."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play one row; returns a number, a mapping of completion id to number, `Result`, or None."""


_CURRENT: ContextVar[EpisodeContext | None] = ContextVar("ludus_episode", default=None)


def current_episode() -> EpisodeContext | None:
    """The episode of the calling agent. None: the caller is not inside an episode."""
    return _CURRENT.get()


def actor(name: str) -> Actor:
    """The actor `name` of the current episode.

    Raises UserError outside an episode, if `rollout.actors` has no such name, or if its key is missing.
    """
    context = current_episode()
    if context is None:
        raise UserError(f"actor({name!r}) was asked for outside of an episode; ask where the agent plays")
    return context.actor(name)
