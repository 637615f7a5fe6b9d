"""Every turn that a model has answered, by its id: in which session it was recorded, and what has become of it.

Knows: records, the run store.  Knows not: trajectories, rewards, HTTP, what opens sessions.
Invariants: an answered turn is in the journal before its client has it; a session's tokens are handed to a training
step, or accounted for as failed or unused, once.
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
"""Ended sessions in memory that no training has taken; more than a large evaluation plays between two steps."""


@dataclass(slots=True)
class _Held:
    spec: SessionSpec
    nodes: list[Node] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    has_ended: bool = False
    claimed: set[str] = field(default_factory=set)
    """Turns that a training step has taken."""
    is_taken: bool = False
    """A training step has taken all of it."""

    @property
    def is_shared(self) -> bool:
        """Several trajectories may have turns in it: it is of no group."""
        return self.spec.group_id is None

    def snapshot(self) -> SessionRecord:
        return SessionRecord(str(self.spec.id), tuple(self.nodes), tuple(self.turns))


class TurnRecords:
    """The `Archive` of one model whose trajectories name turns. Safe to use from several threads."""

    def __init__(self, store: RunStore, config: Config, *, most_kept: int = MOST_KEPT) -> None:
        self.model = config.name
        """Whose turns they are."""
        self._store = store
        self._config = config
        self._most_kept = most_kept
        self._lock = threading.RLock()
        self._held: dict[str, _Held] = {}
        self._session_of: dict[str, str] = {}
        """By turn id; of turns that are in memory."""
        self._episode_of: dict[str, str] = {}
        """By turn id; of turns that are in the run store alone."""
        self._has_read_store = False
        self._failed: list[Discarded] = []
        self._unused = Ledger()

    def __repr__(self) -> str:
        return f"TurnRecords(sessions={len(self._held)}, turns={len(self._session_of)})"

    # ---- what is kept

    def fit(self, spec: SessionSpec) -> SessionSpec:
        """What a session is opened with: the seed is that of the id that was asked for, the id one that is free.

        Where the id was used before, as by a process that was killed, the session has one that goes on from it.
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
        """It is known since its spec was fitted."""

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
        """The session gets no more turns; what no training step takes of it is an episode of its own, in the end."""
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
        """Where these turns are: with everything else in a rollout's own session, and of every other session alone.

        others: turns that belong to other trajectories.  Raises UserError for a turn that is not there.
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
        """These turns, by id, were trained on and are in the run store as part of these episodes."""
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
        """The account of sessions that were put away untrained since the last call. is_last: put all away."""
        with self._lock:
            if is_last:
                for held in list(self._held.values()):
                    self._put_away(held)
            unused, self._unused = self._unused + account_discarded(self._failed), Ledger()
            self._failed = []
            return unused

    # ---- inside, with the lock held

    def _record_of(self, turn_id: str) -> str:
        """The session's id, or the episode's where the run store alone has the turn."""
        if turn_id not in self._session_of and turn_id not in self._episode_of and not self._has_read_store:
            self._has_read_store = True  # turns of processes before this one
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
        """What no step has taken of a session, now an episode in the run store. None: nothing is left."""
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
