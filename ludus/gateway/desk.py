"""The desk: sessions that others open, reward and end, until each is an episode in the archive.

Knows: sessions, rewards by turn, idleness, outcomes.  Knows not: HTTP, who trains on the episodes.
Invariants: every session with a turn becomes one episode, whoever ended it and why; a reward that was acknowledged is
in it; every reward is a finite number of a turn that exists.

    open ──(requests, rewards)──▶ open ──▶ ended: by its owner · idle · the key got a new session · the desk closed
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ludus.episodes.episode import finish, rewarded_late
from ludus.episodes.handle import SessionSpec
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.outcome import Closed, Ending, Idle, Told
from ludus.episodes.reward import RewardSheet
from ludus.episodes.session import Session
from ludus.errors import AgentError, LudusError
from ludus.gateway.archive import Archive
from ludus.gateway.keys import Seat, Sessions
from ludus.http.keys import digest, new_key
from ludus.types import Episode, SessionRecord

logger = logging.getLogger(__name__)

IDLE_S = 3600.0  # a person who tries a model comes back to a conversation within the hour, or begins another
# What sessions opened by any key may hold in memory: a turn of 1000 tokens takes some 50 kB.
MAX_OPEN_SESSIONS = 1024
MAX_OPEN_TURNS = 1024
MAX_ENDED = 4096  # ended sessions whose keys are still known, so that their owners may reward them and read them
SWEEPS = 4  # looks at idleness in the time that a session may be idle: it ends at most a quarter later
MOST_SECONDS_BETWEEN_SWEEPS = 30.0


class Opener(Protocol):
    """Opens a recorded session, as `Recorder.open` does."""

    def __call__(self, *, session_id: str, group_id: str | None, limits: Limits) -> Session: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a session was opened with."""

    id: str | None = None
    """None: one is made."""
    agent: str = ""
    group_id: str | None = None
    """None: it belongs to no group."""
    group_size: int | None = None
    """Sessions that the group will have. None: nobody said."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = NO_LIMITS


@dataclass(slots=True, eq=False)
class Held:
    """One session at the desk."""

    id: str
    asked: Asked
    seat: Seat | None
    """None: it has ended."""
    key: bytes
    """Digest of its key."""
    opened_at: float
    is_given: bool
    """It was opened by name; else by the first request of an unknown key."""
    rewards: RewardSheet = field(default_factory=RewardSheet)
    """Until it has ended; then they are the episode's."""
    is_kept: bool = False
    """Its episode is in the archive."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it ends or is rewarded."""

    @property
    def session(self) -> Session:
        assert self.seat is not None, f"the session {self.id} has ended"
        return self.seat.session

    @property
    def used_at(self) -> float:
        assert self.seat is not None, f"the session {self.id} has ended"
        return self.seat.used_at


class Desk:
    """Sessions opened from outside. Its coroutines run on the gateway's loop, or on any other once that has stopped."""

    def __init__(
        self,
        sessions: Sessions,
        opener: Opener,
        archive: Archive,
        *,
        admin_key: str | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """admin_key: None makes one, `admin_key` tells it.  idle_s: a session that nobody asks for so long is ended."""
        self.sessions = sessions
        self.archive = archive
        self.admin_key = new_key() if admin_key is None else admin_key
        self._idle_s = idle_s
        self._opener = opener
        self._archiving = threading.Lock()
        """Held while a session is kept, and while an ended one is rewarded."""
        self._open: dict[str, Held] = {}
        self._ended: OrderedDict[str, Held] = OrderedDict()
        """The latest that have ended; the first to be forgotten comes first."""
        self._by_key: dict[bytes, Held] = {}
        self._retired: list[Held] = []
        """Sessions whose key has got another one; they end at the next sweep."""

    def __repr__(self) -> str:
        return f"Desk(open={len(self._open)}, ended={len(self._ended)}, archive={self.archive!r})"

    # ---- opening and finding

    @property
    def open_sessions(self) -> tuple[Held, ...]:
        """In the order in which they were opened."""
        return tuple(self._open.values())

    @property
    def ended_sessions(self) -> tuple[Held, ...]:
        """The latest that have ended, in that order."""
        return tuple(self._ended.values())

    async def open(self, asked: Asked) -> tuple[Held, str]:
        """A new session and its key. Raises AgentError 409 if there is or was one with its id."""
        session_id = f"s-{uuid.uuid4().hex[:16]}" if asked.id is None else asked.id
        if asked.id is not None:
            is_taken = session_id in self._open or await asyncio.to_thread(self.archive.find, session_id) is not None
            if is_taken or session_id in self._open:  # looked up again: the archive may have taken its time
                raise AgentError(f"there is a session {session_id!r} already", status=409, code="session_exists")
        key = new_key()
        return self._hold(session_id, asked, key, is_given=True), key

    def open_for(self, key: str) -> Seat:
        """The seat of a new session that this key names from now on; '' names none."""
        known = self._by_key.get(digest(key)) if key else None
        if known is not None and not known.is_given and known.seat is not None:
            self._retire(known)
        by_key = [held for held in self._open.values() if not held.is_given]
        if len(by_key) >= MAX_OPEN_SESSIONS:
            self._retire(min(by_key, key=lambda held: held.used_at))
        opened = self._hold(f"open-{uuid.uuid4().hex[:16]}", Asked(), key or new_key(), is_given=False)
        assert opened.seat is not None, "it has just been opened"
        return opened.seat

    def by_key(self, key: str) -> Held | None:
        """The session whose key this is, ended or not. None: no session has it."""
        return self._by_key.get(digest(key))

    def find(self, session_id: str) -> Held | None:
        """None: there is no such session, or it ended long ago."""
        return self._open.get(session_id) or self._ended.get(session_id)

    # ---- rewards

    async def reward(self, session_id: str, value: object) -> dict[str, float]:
        """The session's rewards by turn id after giving it this one, as `RewardSheet.add` takes it.

        An ended session is rewarded in the archive. Raises AgentError for a turn or a session that does not exist.
        """
        held = self.find(session_id)
        if held is None:
            return await asyncio.to_thread(self._reward_ended, session_id, value)
        async with held.lock:
            if held.seat is None:
                return await asyncio.to_thread(self._reward_ended, session_id, value)
            self.archive.add_rewards(held.id, held.rewards.add(value, held.session.snapshot().turns))
            return held.rewards.by_turn

    def _reward_ended(self, session_id: str, value: object) -> dict[str, float]:
        with self._archiving:
            episode = self.episode(session_id)
            changed = rewarded_late(episode, value)
            self.archive.change(changed)
            return dict(changed.rewards)

    def episode(self, session_id: str) -> Episode:
        """Of an ended session, from the archive. Raises AgentError 404."""
        episode = self.archive.find(session_id)
        if episode is None:
            raise AgentError(f"there is no session {session_id!r}", status=404, code="session_not_found")
        return episode

    def so_far(self, held: Held) -> Episode:
        """What the episode of an open session would be now."""
        return self._episode_of(held, held.session.snapshot(), Told("ok", "the session is open"), {})

    # ---- ending

    async def end(self, held: Held, ending: Ending, metrics: Mapping[str, float] | None = None) -> None:
        """The session takes no more requests and is in the archive when this returns. Ending twice is allowed."""
        async with held.lock:
            if held.seat is None:
                return
            record = await held.session.aclose(type(ending).__name__.lower())
            if held.is_given or record.turns:
                await asyncio.to_thread(self._keep, held, self._episode_of(held, record, ending, metrics or {}))
            self._forget(held)
            logger.info("session.ended session=%s ending=%s", held.id, ending)

    def _keep(self, held: Held, episode: Episode) -> None:
        """Once, also where who waited for it was cancelled and the session is ended again."""
        with self._archiving:
            if not held.is_kept:
                self.archive.keep(episode, group_size=held.asked.group_size)
                held.is_kept = True

    async def expire(self) -> None:
        """Ends the sessions that were not asked for too long, and those whose key has got another."""
        for held in tuple(self._retired):
            await self.end(held, Told("ok", "its key was given a new session"))
            self._retired.remove(held)
        now = self.sessions.clock()
        for held in self.open_sessions:
            if now - held.used_at >= self._idle_s and held.session.stats().num_running == 0:
                await self.end(held, Idle(self._idle_s))

    async def sweep(self) -> None:
        """Expires what is idle from time to time, until cancelled."""
        while True:
            await asyncio.sleep(min(self._idle_s / SWEEPS, MOST_SECONDS_BETWEEN_SWEEPS))
            try:
                await self.expire()
            except LudusError:  # a disk that is full now: the sessions are there still, and the next time may do
                logger.exception("sessions.not_kept")

    async def aclose(self, reason: str) -> None:
        """Ends every open session."""
        await self.expire()
        for held in self.open_sessions:
            await self.end(held, Closed(reason))

    # ---- inside

    def _hold(self, session_id: str, asked: Asked, key: str, *, is_given: bool) -> Held:
        session = self._opener(session_id=session_id, group_id=asked.group_id, limits=asked.limits)
        seat = Seat(session, agent=asked.agent, max_turns=None if is_given else MAX_OPEN_TURNS)
        held = Held(session_id, asked, seat, digest(key), opened_at=time.time(), is_given=is_given)
        self.archive.begin(session_id, _about(held))
        self._open[session_id] = self._by_key[held.key] = held
        self.sessions.seat(key, seat)
        return held

    def _retire(self, held: Held) -> None:
        """Its key is free at once; it ends at the next sweep, since ending may wait and this must not."""
        self.sessions.remove_digest(held.key, held.seat)
        self._by_key.pop(held.key, None)
        del self._open[held.id]
        self._retired.append(held)

    def _forget(self, held: Held) -> None:
        self.sessions.remove_digest(held.key, held.seat)
        held.seat = None
        self._open.pop(held.id, None)
        self._ended[held.id] = held
        while len(self._ended) > MAX_ENDED:
            _, oldest = self._ended.popitem(last=False)
            if self._by_key.get(oldest.key) is oldest:
                del self._by_key[oldest.key]

    def _episode_of(self, held: Held, record: SessionRecord, ending: Ending, metrics: Mapping[str, float]) -> Episode:
        asked = held.asked
        spec = SessionSpec(held.id, group_id=asked.group_id, metadata=asked.metadata)
        refused = held.session.stats().refused
        return finish(
            spec, record, ending, started_at=held.opened_at, sheet=held.rewards, refused=refused, metrics=metrics
        )


def _about(held: Held) -> dict[str, Any]:
    group_id = held.asked.group_id or held.id
    return {"task_id": group_id, "group_id": group_id, "metadata": held.asked.metadata, "started_at": held.opened_at}
