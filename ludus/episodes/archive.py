"""Archives, which keep sessions: turns and rewards while a session is open, its episode when it has ended.

Knows: episodes, a run's folder.  Knows not: HTTP, keys, engines.
Invariant: what was acknowledged to a client is as durable as the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ludus.episodes.session import TurnSink
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.runs.store import RunStore
from ludus.types import Episode, Node, Turn


class Archive(TurnSink, Protocol):
    """Keeps sessions. `begin` and the `add_…` methods are quick; others may wait for a disk. Called from any thread.

    Raises UserError or BackendError if the disk cannot be written.
    """

    def begin(self, spec: SessionSpec, started_at: float) -> None:
        """A session was opened; the spec has its id."""

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        """An open session was given rewards, by turn id. They are durable when this returns."""

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        """A session has ended. Its episode is durable when this returns."""

    def forget(self, session_id: str) -> None:
        """A session has ended, and is not kept."""

    def has(self, session_id: str) -> bool:
        """Whether an ended session with this id is kept here."""

    def find(self, session_id: str) -> Episode | None:
        """The episode of an ended session. None: it is not here."""

    def change(self, episode: Episode) -> None:
        """An ended session was given rewards. Raises AgentError if it is too late for them."""


class RunArchive:
    """The folder of a run as an `Archive`."""

    def __init__(
        self,
        store: RunStore,
        *,
        step: Callable[[], int] | None = None,
        on_kept: Callable[[Episode, SessionSpec], None] | None = None,
    ) -> None:
        """step: returns the training step that may use sessions that end now. None: the step that asked for them.
        on_kept: called with each kept session, which then accepts no more rewards. None: nothing is called."""
        self._store = store
        self._step = step
        self._on_kept = on_kept

    def __repr__(self) -> str:
        return f"RunArchive({self._store!r})"

    def begin(self, spec: SessionSpec, started_at: float) -> None:
        group_id = spec.group_id or spec.id
        facts = {
            "task_id": spec.task_id or group_id,
            "group_id": group_id,
            "metadata": spec.metadata,
            "started_at": started_at,
            "is_eval": spec.is_eval,
        }
        self._store.journal.info(str(spec.id), facts)

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        self._store.journal.add_turn(session_id, nodes, turn)

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        self._store.journal.add_rewards(session_id, rewards)

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        self._store.add_episode(episode, step=spec.step if self._step is None else self._step())
        if self._on_kept is not None:
            self._on_kept(episode, spec)

    def forget(self, session_id: str) -> None:
        self._store.journal.end(session_id)

    def has(self, session_id: str) -> bool:
        return self._store.has_episode(session_id)

    def find(self, session_id: str) -> Episode | None:
        return self._store.find_episode(session_id)

    def change(self, episode: Episode) -> None:
        if self._on_kept is not None:
            raise AgentError(
                f"the session {episode.id!r} has ended and may have been trained on; reward it before it ends",
                status=409,
                code="session_ended",
            )
        self._store.change_episode(episode)


class MemoryArchive:
    """An `Archive` in memory, for programs that need their sessions only while they run."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(episodes={len(self._episodes)})"

    def begin(self, spec: SessionSpec, started_at: float) -> None: ...

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None: ...

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None: ...

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        self._episodes[episode.id] = episode

    def forget(self, session_id: str) -> None: ...

    def has(self, session_id: str) -> bool:
        return session_id in self._episodes

    def find(self, session_id: str) -> Episode | None:
        return self._episodes.get(session_id)

    def change(self, episode: Episode) -> None:
        self._episodes[episode.id] = episode
