"""Every turn that a model has answered, by its id: in which session it was recorded, and what has become of it.

Knows: sessions, records, the run store.  Knows not: trajectories, rewards, HTTP.
Invariants: an answered turn is in the journal before its client has it; a session's tokens are handed to a training
step, or accounted for as failed or unused, once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ludus.compat.art.claim import Part, join_records, unknown_turn
from ludus.episodes.episode import finish
from ludus.episodes.handle import SessionSpec
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.episodes.limits import Limits
from ludus.episodes.outcome import Told
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.loop.batch import account_discarded
from ludus.rollout.pool import Discarded
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import derive_seed
from ludus.runs.store import RunStore
from ludus.types import Episode, Node, SessionRecord, Turn

MOST_KEPT = 4096
"""Ended sessions in memory that no training has taken; more than a large evaluation plays between two steps."""


@dataclass(slots=True)
class _Held:
    session: Session
    is_shared: bool
    """Several trajectories may have turns in it."""
    record: SessionRecord | None = None
    """None: it is open."""
    claimed: set[str] = field(default_factory=set)
    """Turns that a training step has taken."""
    is_taken: bool = False
    """A training step has taken all of it."""

    def snapshot(self) -> SessionRecord:
        return self.session.snapshot() if self.record is None else self.record


class TurnBook:
    """The sessions of one model. Safe to use from several threads."""

    def __init__(
        self,
        recorder: Recorder,
        store: RunStore,
        *,
        rollout: RolloutSettings,
        generation: GenerationSettings,
        seed: int,
        most_kept: int = MOST_KEPT,
    ) -> None:
        self._recorder = recorder
        self._store = store
        self._rollout = rollout
        self._generation = generation
        self._seed = seed
        self._most_kept = most_kept
        self._lock = threading.RLock()
        self._held: dict[str, _Held] = {}
        self._session_of: dict[str, str] = {}
        """By turn id; of turns that are in memory."""
        self._episode_of: dict[str, str] = {}
        """By turn id; of turns that are in the run store alone."""
        self._has_read_store = False
        self._failed: list[Discarded] = []
        self._unused = Ledger.zero()

    def __repr__(self) -> str:
        return f"TurnBook(sessions={len(self._held)}, turns={len(self._session_of)})"

    # ---- sessions

    def open(self, session_id: str, *, is_shared: bool = False, group_id: str | None = None) -> Session:
        """A new session, whose turns are found here; its seed is that of the id.

        is_shared: several trajectories may have turns in it.  Where the id was used before, as by a process that was
        killed, the session has one that goes on from it.
        """
        own_id, number = session_id, 0
        while own_id in self._held or self._store.find_episode(own_id) is not None:
            number += 1
            own_id = f"{session_id}-r{number}"
        session = self._recorder.open(
            session_id=own_id,
            group_id=group_id,
            limits=Limits(
                max_turns=None if is_shared else self._rollout.max_turns,
                max_tokens=None if is_shared else self._rollout.max_tokens,
            ),
            sampling=self._generation.sampling(seed=derive_seed(self._seed, "trajectory", session_id)),
            pinned=self._rollout.pinned,
            sink=self,
        )
        with self._lock:
            self._held[own_id] = _Held(session, is_shared)
        return session

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        """Called by the sessions themselves, before an answer ends."""
        self._store.journal.add_turn(session_id, nodes, turn)
        with self._lock:
            self._session_of[turn.id] = session_id

    async def end(self, session_id: str, error: BaseException | None = None) -> None:
        """The session gets no more turns. error: what its rollout raised; None: it returned."""
        with self._lock:
            held = self._held.get(session_id)
        if held is None or held.record is not None:
            return
        record = await held.session.aclose("its rollout has ended")
        await asyncio.to_thread(self._end, held, record, error)

    # ---- what training takes

    def parts(self, turn_ids: Iterable[str], *, others: Collection[str] = ()) -> list[Part]:
        """Where these turns are: with everything else in a rollout's own session, and of every other session alone.

        others: turns that belong to other trajectories.  Raises UserError for a turn that nobody has.
        """
        by_session: dict[str, list[str]] = {}
        with self._lock:
            for turn_id in turn_ids:
                by_session.setdefault(self._place(turn_id), []).append(turn_id)
            return [self._part(place, found, others) for place, found in by_session.items()]

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
            for session_id, held in list(self._held.items()):
                record = held.record
                if record is not None and all(turn.id in held.claimed for turn in record.turns):
                    self._drop(session_id, record)

    def take_unused(self, *, is_last: bool = False) -> Ledger:
        """The account of sessions that were put away untrained since the last call. is_last: put all away."""
        with self._lock:
            if is_last:
                for held in list(self._held.values()):
                    self._put_away(held)
            unused, self._unused = self._unused + account_discarded(self._failed), Ledger.zero()
            self._failed = []
            return unused

    def close_nowait(self) -> None:
        """No session gets more turns."""
        with self._lock:
            still_open = [held for held in self._held.values() if held.record is None]
        for held in still_open:  # without the lock: a session that records a turn holds its own, and waits for this one
            record = held.session.close("the backend was closed")
            with self._lock:
                held.record = record

    def _end(self, held: _Held, record: SessionRecord, error: BaseException | None) -> None:
        with self._lock:
            held.record = record
            if not record.turns:
                self._held.pop(held.session.id, None)
            elif error is not None:
                mask: MaskReason = "failed" if isinstance(error, Exception) else "cancelled"
                ending = Told("failed" if mask == "failed" else "cancelled", f"{type(error).__name__}: {error}")
                episode = self._keep(held, ending)
                self._failed.extend([] if episode is None else [Discarded(episode, mask)])
            self._evict()

    # ---- inside, with the lock held

    def _place(self, turn_id: str) -> str:
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

    def _part(self, place: str, turn_ids: list[str], others: Collection[str]) -> Part:
        held = self._held.get(place)
        if held is None:
            return Part(self._store.episode(place).session, frozenset(turn_ids))
        record = held.snapshot()
        if held.is_shared or held.is_taken:
            return Part(record, frozenset(turn_ids))
        return Part(record, frozenset(turn.id for turn in record.turns if turn.id not in others))

    def _evict(self) -> None:
        ended = [held for held in self._held.values() if held.record is not None]
        for held in ended[: max(0, len(ended) - self._most_kept)]:
            self._put_away(held)

    def _put_away(self, held: _Held) -> None:
        unused = self._keep(held, Told("ok", "no training step took it"))
        if unused is not None:
            self._unused = self._unused + Ledger.all_masked(unused.session.num_sampled_tokens, "unused")

    def _keep(self, held: _Held, ending: Told) -> Episode | None:
        """What no step has taken of a session, now an episode in the run store. None: nothing is left."""
        record = held.snapshot()
        left = frozenset(turn.id for turn in record.turns if turn.id not in held.claimed)
        episode = None
        if left:
            rest = join_records(record.id, [Part(record, left)])
            spec = SessionSpec(record.id, group_id=held.session.group_id)
            episode = finish(spec, rest, ending, started_at=rest.turns[0].started_at)
            self._store.add_episode(episode)
            self._episode_of.update(dict.fromkeys(left, episode.id))
        self._drop(record.id, record)
        return episode

    def _drop(self, session_id: str, record: SessionRecord) -> None:
        self._held.pop(session_id, None)
        for turn in record.turns:
            self._session_of.pop(turn.id, None)
        self._store.journal.end(session_id)
