"""Where sessions go that were opened over HTTP: what is known of them before they end, and their episodes after.

Knows: episodes, a run's folder.  Knows not: HTTP, keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ludus.errors import BackendError, UserError
from ludus.runs.store import RunStore
from ludus.types import Episode


class Archive(Protocol):
    """Keeps sessions. `begin` and `add_rewards` are quick; the others may wait for a disk."""

    def begin(self, session_id: str, about: Mapping[str, Any]) -> None:
        """A session was opened. about: task_id, group_id, metadata, started_at."""

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        """An open session was given rewards, by turn id; durable when it returns."""

    def keep(self, episode: Episode, *, group_size: int | None) -> None:
        """A session has ended; durable when it returns. group_size: sessions of its group. None: nobody said."""

    def find(self, session_id: str) -> Episode | None:
        """The episode of an ended session. None: it is not here."""

    def change(self, episode: Episode) -> None:
        """An ended session was given rewards. Raises AgentError where it is too late for them."""


class RunArchive:
    """The folder of a run as an `Archive`."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"RunArchive({self._store!r})"

    def begin(self, session_id: str, about: Mapping[str, Any]) -> None:
        self._store.journal.about(session_id, about)

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        self._store.journal.add_rewards(session_id, rewards)

    def keep(self, episode: Episode, *, group_size: int | None, step: int | None = None) -> None:
        """step: the training step that may use it. None: none will."""
        del group_size
        with _told_as_ours():
            self._store.add_episode(episode, step=step)

    def find(self, session_id: str) -> Episode | None:
        with _told_as_ours():
            return self._store.find_episode(session_id)

    def change(self, episode: Episode) -> None:
        with _told_as_ours():
            self._store.change_episode(episode)


@contextmanager
def _told_as_ours() -> Iterator[None]:
    """A disk that refuses is the fault of whoever runs the gateway, not of a client."""
    try:
        yield
    except UserError as error:
        raise BackendError(str(error)) from error


class MemoryArchive:
    """An `Archive` that ends with the process, for programs that hold their sessions themselves."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}

    def __repr__(self) -> str:
        return f"MemoryArchive(episodes={len(self._episodes)})"

    def begin(self, session_id: str, about: Mapping[str, Any]) -> None: ...

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None: ...

    def keep(self, episode: Episode, *, group_size: int | None) -> None:
        del group_size
        self._episodes[episode.id] = episode

    def find(self, session_id: str) -> Episode | None:
        return self._episodes.get(session_id)

    def change(self, episode: Episode) -> None:
        self._episodes[episode.id] = episode
