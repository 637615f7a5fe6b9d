"""What every family of agents becomes: something that plays one row in the context of one episode.

Knows: what an episode gives its agent.  Knows not: how any family plays, groups, training.
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
    """Which episode is played."""

    episode_id: str
    task_id: str
    """The row."""
    group_id: str
    step: int | None = None
    """The training step that asked for it. None: no step did."""
    is_eval: bool = False


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """What an episode gives its agent."""

    base_url: str
    api_key: str
    http_client: Any
    """An httpx (or httpx2) client that reaches the base_url; the episode's own, and closed when it ends."""
    session: Session | None = None
    """The model by messages or token ids, and the record. None: the session lies in another process."""
    info: EpisodeInfo = EpisodeInfo("", "", "")
    deadline_at: float | None = None
    """time.monotonic() after which the model answers no more. None: it always does."""
    spans: SpanLog = field(default_factory=SpanLog)
    """What was done meanwhile, besides asking the model."""
    agent_metrics: dict[str, list[float]] = field(default_factory=dict)
    """What the agent counted meanwhile; the mean of each becomes a metric of the episode."""
    clients: SharedClients = field(default_factory=SharedClients)
    """For other hosts; shared with the other episodes on this event loop."""
    actors: Mapping[str, ActorSettings] = field(default_factory=dict)
    """By name the models that play a part and are not trained."""

    def actor(self, name: str) -> Actor:
        """The model that plays this part. Raises UserError if there is none of the name, or its key is missing."""
        return find_actor(name, self.actors, self.clients)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """For the length of the block, and for the tasks and threads begun in it, this is `current_episode()`."""
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
        """Once, before the first episode."""

    async def close(self) -> None:
        """Once, after the last episode."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """What `reward.read` reads: a number, a mapping of completion id to number, `Result`, or None."""


_CURRENT: ContextVar[EpisodeContext | None] = ContextVar("ludus_episode", default=None)


def current_episode() -> EpisodeContext | None:
    """The episode whose agent asks. None: nothing is being played here."""
    return _CURRENT.get()


def actor(name: str) -> Actor:
    """The model that plays the part `name` in the episode that is being played.

    Raises UserError if no episode is, if there is none of the name below `rollout.actors`, or if its key is missing.
    """
    context = current_episode()
    if context is None:
        raise UserError(f"actor({name!r}) was asked for outside of an episode; ask where the agent plays")
    return context.actor(name)
