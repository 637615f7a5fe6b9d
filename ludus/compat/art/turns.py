"""Finds the record of every turn of a model by its id, and tracks whether it was trained.

Knows: records, the run store.  Knows not: trajectories, rewards, HTTP, what opens sessions.
Invariants: a turn is in the journal before its client gets the answer; the tokens of a session are either given to a
training step, or accounted for as failed or unused, exactly once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ludus.compat.art.claim import unknown_turn
from ludus.config import Config
from ludus.episodes.claim import SessionTurns, join_records
from ludus.episodes.episode import finish
from ludus.episodes.ledger import Ledger
from ludus.episodes.limits import Limits
from ludus.episodes.outcome import Reported
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.loop.batch import account_discarded
from ludus.rollout.groups import Discarded
from ludus.rollout.mixture import derive_seed
from ludus.runs.store import RunStore
from ludus.types import Episode, Node, SessionRecord, Turn

MOST_KEPT = 4096
"""Ended, untrained sessions kept in memory: more than a large evaluation has between two steps."""


@dataclass(slots=True)
class _Held:
    spec: SessionSpec
    nodes: list[Node] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    has_ended: bool = False
    claimed: set[str] = field(default_factory=set)
    """Turns that were taken by a training step."""
    is_taken: bool = False
    """Whether all of it was taken by a training step."""

    @property
    def is_shared(self) -> bool:
        """Whether several trajectories may have turns in it, which is the case if it has no group."""
        return self.spec.group_id is None

    def snapshot(self) -> SessionRecord:
        return SessionRecord(str(self.spec.id), tuple(self.nodes), tuple(self.turns))


class TurnRecords:
    """The `Archive` of one model whose trajectories name turns. Safe to use from several threads."""

    def __init__(self, store: RunStore, config: Config, *, most_kept: int = MOST_KEPT) -> None:
        self.model = config.name
        """Name of the model."""
        self._store = store
        self._config = config
        self._most_kept = most_kept
        self._lock = threading.RLock()
        self._held: dict[str, _Held] = {}
        self._session_of: dict[str, str] = {}
        """Session ids by turn id, for turns in memory."""
        self._episode_of: dict[str, str] = {}
        """Episode ids by turn id, for turns that are only in the run store."""
        self._has_read_store = False
        self._failed: list[Discarded] = []
        self._unused = Ledger()

    def __repr__(self) -> str:
        return f"TurnRecords(sessions={len(self._held)}, turns={len(self._session_of)})"

    # ---- what is kept

    def fit(self, spec: SessionSpec) -> SessionSpec:
        """The spec with the seed of the requested id, and an unused id.

        If the id was used before, for instance by a killed process, the new id is derived from it.
        """
        asked, own_id, number = str(spec.id), str(spec.id), 0
        with self._lock:
            while self.has(own_id):
                number += 1
                own_id = f"{asked}-r{number}"
            rollout, seed = self._config.rollout, derive_seed(self._config.seed, "trajectory", asked)
            limits = Limits(max_turns=rollout.max_turns, max_tokens=rollout.max_tokens)
            self._held[own_id] = held = _Held(
                replace(
                    spec,
                    id=own_id,
                    limits=Limits() if spec.group_id is None else limits,
                    sampling=self._config.gconfig.sampling(seed=seed),
                    pinned=rollout.pinned,
                )
            )
            return held.spec

    def begin(self, spec: SessionSpec, started_at: float) -> None:
        """Nothing to do: the session is known since `fit`."""

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        self._store.journal.add_turn(session_id, nodes, turn)
        with self._lock:
            held = self._held[session_id]
            held.nodes += nodes
            held.turns.append(turn)
            self._session_of[turn.id] = session_id

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        raise _rewarded_by_trajectories(session_id)

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        """The session has ended. Turns that no training step takes finally become a separate episode."""
        with self._lock:
            held, outcome = self._held[episode.id], episode.outcome
            held.has_ended = True
            if not held.turns:
                del self._held[episode.id]
            elif outcome.kind in ("failed", "cancelled"):
                kept = self._keep(held, Reported(outcome.kind, outcome.reason))
                self._failed.extend([] if kept is None else [Discarded(kept, outcome.kind)])
            ended = [held for held in self._held.values() if held.has_ended]
            for held in ended[: max(0, len(ended) - self._most_kept)]:
                self._put_away(held)

    def forget(self, session_id: str) -> None:
        with self._lock:
            del self._held[session_id]

    def has(self, session_id: str) -> bool:
        return session_id in self._held or self._store.has_episode(session_id)

    def find(self, session_id: str) -> Episode | None:
        return self._store.find_episode(session_id)

    def change(self, episode: Episode) -> None:
        raise _rewarded_by_trajectories(episode.id)

    # ---- what training takes

    def parts(self, turn_ids: Iterable[str], *, others: Collection[str] = ()) -> list[SessionTurns]:
        """The parts of sessions with these turns: the whole session of a rollout, but only these turns of shared
        sessions.

        others: turns that belong to other trajectories.  Raises UserError for an unknown turn.
        """
        by_session: dict[str, list[str]] = {}
        with self._lock:
            for turn_id in turn_ids:
                by_session.setdefault(self._record_of(turn_id), []).append(turn_id)
            return [self._part(record_id, found, others) for record_id, found in by_session.items()]

    def take_failed(self) -> tuple[Discarded, ...]:
        """Sessions of rollouts that failed since the last call."""
        with self._lock:
            failed, self._failed = self._failed, []
            return tuple(failed)

    def settle(self, episodes: Mapping[str, Episode]) -> None:
        """Mark these turns as trained; they are stored as part of the given episodes."""
        with self._lock:
            for turn_id, episode in episodes.items():
                self._episode_of[turn_id] = episode.id
                held = self._held.get(self._session_of.get(turn_id, ""))
                if held is not None:
                    held.claimed.add(turn_id)
                    held.is_taken = held.is_taken or not held.is_shared
            for held in list(self._held.values()):
                if held.has_ended and all(turn.id in held.claimed for turn in held.turns):
                    self._drop(held)

    def take_unused(self, *, is_last: bool = False) -> Ledger:
        """The ledger of sessions that were stored untrained since the last call. is_last: store all remaining ones."""
        with self._lock:
            if is_last:
                for held in list(self._held.values()):
                    self._put_away(held)
            unused, self._unused = self._unused + account_discarded(self._failed), Ledger()
            self._failed = []
            return unused

    # ---- inside, with the lock held

    def _record_of(self, turn_id: str) -> str:
        """Id of the turn's session, or of its episode if it is only in the run store."""
        if turn_id not in self._session_of and turn_id not in self._episode_of and not self._has_read_store:
            self._has_read_store = True  # includes turns of earlier processes
            for episode in self._store.episodes():
                for turn in episode.session.turns:
                    self._episode_of.setdefault(turn.id, episode.id)
        found = self._session_of.get(turn_id) or self._episode_of.get(turn_id)
        if found is None:
            raise unknown_turn(turn_id)
        return found

    def _part(self, record_id: str, turn_ids: list[str], others: Collection[str]) -> SessionTurns:
        held = self._held.get(record_id)
        if held is None:
            return SessionTurns(self._store.episode(record_id).session, frozenset(turn_ids))
        record = held.snapshot()
        if held.is_shared or held.is_taken:
            return SessionTurns(record, frozenset(turn_ids))
        return SessionTurns(record, frozenset(turn.id for turn in record.turns if turn.id not in others))

    def _put_away(self, held: _Held) -> None:
        unused = self._keep(held, Reported("ok", "no training step took it"))
        if unused is not None:
            self._unused = self._unused + Ledger.all_masked(unused.session.num_sampled_tokens, "unused")

    def _keep(self, held: _Held, ending: Reported) -> Episode | None:
        """Store the untrained turns of a session as an episode; returns it. None: there are none."""
        record = held.snapshot()
        left = frozenset(turn.id for turn in record.turns if turn.id not in held.claimed)
        episode = None
        if left:
            rest = join_records(record.id, [SessionTurns(record, left)])
            episode = finish(held.spec, rest, ending, started_at=rest.turns[0].started_at)
            self._store.add_episode(episode)
            self._episode_of.update(dict.fromkeys(left, episode.id))
        self._drop(held)
        return episode

    def _drop(self, held: _Held) -> None:
        session_id = str(held.spec.id)
        self._held.pop(session_id, None)
        for turn in held.turns:
            self._session_of.pop(turn.id, None)
        self._store.journal.end(session_id)


def _rewarded_by_trajectories(session_id: str) -> AgentError:
    return AgentError(
        f"the session {session_id!r} belongs to trajectories: what its turns are worth is said there",
        status=409,
        code="session_ended",
    )
