"""Sessions from their opening to the episode they become: opened, found, rewarded, ended, expired.

Knows: sessions, keys, rewards, idleness.  Knows not: HTTP, agents, who trains on the episodes.
Invariants: every session with a turn becomes one episode, whoever ended it and why; a reward that was acknowledged is
in it; nothing else opens sessions of a model and keeps what they become.

    open ──(requests, rewards)──▶ open ──▶ ended: by its owner · idle · its key got a new session · all were closed
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ludus.episodes.archive import Archive
from ludus.episodes.episode import NO_METRICS, finish, rewarded_late
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Cancelled, Closed, Ending, Idle, Lost, Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, LudusError
from ludus.http.keys import digest, new_key
from ludus.types import Episode, SessionRecord, Span

logger = logging.getLogger(__name__)

IDLE_S = 3600.0  # a person who tries a model comes back to a conversation within the hour, or begins another
# What sessions opened by any key may hold in memory: a turn of 1000 tokens takes some 50 kB.
MAX_OPEN_SESSIONS = 1024
MAX_OPEN_TURNS = 1024
MAX_ENDED = 4096  # ended sessions whose keys are still known, so that their owners may reward them and read them
SWEEPS = 4  # looks at idleness in the time that a session may be idle: it ends at most a quarter later
MOST_SECONDS_BETWEEN_SWEEPS = 30.0
_UNNAMED = SessionSpec()
_BY_KEY = SessionSpec(most_turns=MAX_OPEN_TURNS)


class Episodes:
    """The sessions of one recorder. Safe to use from several threads and event loops."""

    def __init__(
        self,
        recorder: Recorder,
        archive: Archive | None = None,
        *,
        keys: SessionKeys | None = None,
        idle_s: float | None = None,
        most_by_key: int | None = MAX_OPEN_SESSIONS,
        fit: Callable[[SessionSpec], SessionSpec] = lambda spec: spec,
    ) -> None:
        """archive: None: episodes are only returned.  keys: None: its own.  idle_s: a session that nobody asks for so
        long is ended. None: none is.  most_by_key: open at once of those that unknown keys opened; beyond that the
        longest unused one ends. None: no bound.  fit: what is made of a spec, which has its id, before it is opened.
        """
        self.archive = archive
        self.keys = SessionKeys() if keys is None else keys
        self._recorder = recorder
        self._idle_s = idle_s
        self._most_by_key = most_by_key
        self._fit = fit
        self._lock = threading.Lock()
        """Guards what stands below; held for a moment."""
        self._open: dict[str, Handle] = {}
        self._retired: list[Handle] = []
        """Sessions whose key has got another one; they end at the next sweep."""
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        """Ids by the digests of their keys, of the latest that have ended; the first to be forgotten comes first."""
        self._changing = threading.Lock()
        """Held while an ended session is rewarded."""

    def __repr__(self) -> str:
        return f"Episodes(open={len(self._open)}, ended={len(self._ended)}, archive={self.archive!r})"

    def model_list(self) -> tuple[str, ...]:
        """Names of all models that requests may name."""
        return self._recorder.model_list()

    # ---- opening and finding

    @property
    def open_sessions(self) -> tuple[Handle, ...]:
        """In the order in which they were opened."""
        with self._lock:
            return tuple(self._open.values())

    def open(self, spec: SessionSpec = _UNNAMED, *, key: str | None = None) -> tuple[Handle, str]:
        """A new session and its key. Raises AgentError 409 if one with its id is open.

        An id that the archive knows may be given again: an episode that was broken off is played once more.
        """
        key = new_key() if key is None else key
        return self._hold(spec, key, is_given=True), key

    async def open_new(self, spec: SessionSpec) -> tuple[Handle, str]:
        """The same, where an id that was ever given is none any more. Raises AgentError 409."""
        if spec.id is not None and self.archive is not None and await asyncio.to_thread(self.archive.has, spec.id):
            raise _taken(spec.id)
        return self.open(spec)

    def open_for_key(self, key: str, spec: SessionSpec = _BY_KEY) -> Handle:
        """A new session that this key names from now on; '' names none. One that it named before ends."""
        known = self.keys.get(key) if key else None
        if known is not None and not known.is_given:
            self._retire(known)
        by_key = [handle for handle in self.open_sessions if not handle.is_given]
        if self._most_by_key is not None and len(by_key) >= self._most_by_key:
            self._retire(min(by_key, key=lambda handle: handle.used_at))
        return self._hold(spec, key or new_key(), is_given=False)

    def find(self, session_id: str) -> Handle | None:
        """None: there is no such session, or it has ended."""
        return self._open.get(session_id)

    def by_key(self, key: str) -> str | None:
        """The id of the session whose key this is, ended or not. None: no session has it, or it ended long ago."""
        handle = self.keys.get(key)
        return self._ended.get(digest(key)) if handle is None else handle.id

    # ---- rewards

    def reward(self, session_id: str, value: object) -> dict[str, float]:
        """The session's rewards by turn id after giving it this one, as `RewardSheet.add` takes it.

        May wait for a disk. An ended session is rewarded in the archive. Raises AgentError for a turn or a session that
        does not exist.
        """
        handle = self.find(session_id)
        if handle is not None:
            with handle.lock:
                if handle.episode is None:
                    new = handle.rewards.add(value, handle.session.snapshot().turns)
                    if self.archive is not None:
                        self.archive.add_rewards(session_id, new)
                    return handle.rewards.by_turn
        with self._changing:
            changed = rewarded_late(self.episode(session_id), value)
            assert self.archive is not None, "it has the episode"
            self.archive.change(changed)
            return dict(changed.rewards)

    def episode(self, session_id: str) -> Episode:
        """Of an ended session, from the archive. Raises AgentError 404."""
        episode = None if self.archive is None else self.archive.find(session_id)
        if episode is None:
            raise AgentError(f"there is no session {session_id!r}", status=404, code="session_not_found")
        return episode

    def episode_so_far(self, handle: Handle) -> Episode:
        """What the episode of an open session would be now."""
        return self._finish(handle, handle.session.snapshot(), Reported("ok", "the session is open"))

    # ---- ending

    async def end(
        self,
        handle: Handle,
        ending: Ending,
        *,
        metrics: Mapping[str, float] = NO_METRICS,
        spans: tuple[Span, ...] = (),
    ) -> Episode:
        """The episode, kept; the session takes no more requests. Ending twice gives the same one.

        Where it cannot be kept, the session is there still, closed, and may be ended again.
        """
        if handle.episode is None:
            record = await handle.session.aclose(_reason(ending))
            finished = partial(self._finish, handle, record, ending, metrics, spans)
            if self.archive is None:
                self._keep(handle, record, finished)
            else:
                await asyncio.to_thread(self._keep, handle, record, finished)
        self._forget(handle)
        assert handle.episode is not None, "it was kept"
        return handle.episode

    async def expire(self) -> None:
        """Ends the sessions that were not asked for too long, and those whose key has got another."""
        for handle in tuple(self._retired):
            await self.end(handle, Reported("ok", "its key was given a new session"))
        if self._idle_s is None:
            return
        now = self.keys.clock()
        for handle in self.open_sessions:
            if now - handle.used_at >= self._idle_s and handle.session.stats().num_running == 0:
                await self.end(handle, Idle(self._idle_s))

    async def sweep(self) -> None:
        """Expires what is idle from time to time, until cancelled."""
        idle_s = MOST_SECONDS_BETWEEN_SWEEPS if self._idle_s is None else self._idle_s / SWEEPS
        while True:
            await asyncio.sleep(min(idle_s, MOST_SECONDS_BETWEEN_SWEEPS))
            try:
                await self.expire()
            except LudusError:  # a disk that is full now: the sessions are there still, and the next time may do
                logger.exception("sessions.save_failed")

    async def aclose(self, reason: str) -> None:
        """Ends every open session."""
        await self.expire()
        for handle in self.open_sessions:
            await self.end(handle, Closed(reason))

    # ---- inside

    def _hold(self, spec: SessionSpec, key: str, *, is_given: bool) -> Handle:
        made = f"{'s' if is_given else 'open'}-{uuid.uuid4().hex[:16]}"
        spec = self._fit(spec if spec.id is not None else replace(spec, id=made))
        assert spec.id is not None, "it was given one"
        session = self._recorder.open(spec, sink=self.archive)
        handle = Handle(session, is_given, opened_at=time.time())
        with self._lock:
            if self._open.setdefault(spec.id, handle) is not handle:
                raise _taken(spec.id)
        if self.archive is not None:
            self.archive.begin(spec, handle.opened_at)
        self.keys.bind(key, handle)
        return handle

    def _retire(self, handle: Handle) -> None:
        """Its key is free at once; it ends at the next sweep, since ending may wait and this must not."""
        self.keys.release(handle)
        with self._lock:
            if self._open.get(handle.id) is handle:
                self._retired.append(self._open.pop(handle.id))

    def _finish(
        self,
        handle: Handle,
        record: SessionRecord,
        ending: Ending,
        metrics: Mapping[str, float] = NO_METRICS,
        spans: tuple[Span, ...] = (),
    ) -> Episode:
        refused = handle.session.stats().refused
        return finish(
            handle.spec,
            record,
            ending,
            started_at=handle.opened_at,
            sheet=handle.rewards,
            refused=refused,
            metrics=metrics,
            spans=spans,
        )

    def _keep(self, handle: Handle, record: SessionRecord, finished: Callable[[], Episode]) -> None:
        """Once, also where who waited for it was cancelled and the session is ended again."""
        with handle.lock:
            if handle.episode is None:
                episode = finished()
                if self.archive is not None and (handle.is_given or record.turns):
                    self.archive.keep(episode, handle.spec)
                elif self.archive is not None:  # nobody knows of it
                    self.archive.forget(handle.id)
                handle.episode = episode
                outcome = episode.outcome
                logger.info("session.ended session=%s outcome=%s reason=%s", handle.id, outcome.kind, outcome.reason)

    def _forget(self, handle: Handle) -> None:
        self.keys.release(handle)
        with self._lock:
            if self._open.get(handle.id) is handle:
                del self._open[handle.id]
            if handle in self._retired:
                self._retired.remove(handle)
            self._ended[handle.key] = handle.id
            self._ended.move_to_end(handle.key)
            while len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)


def _reason(ending: Ending) -> str:
    """Why the session is closed, as its clients read it."""
    match ending:
        case Reported(reason=reason) | Closed(reason) | Cancelled(reason) | Lost(reason) if reason:
            return reason
        case _:
            return type(ending).__name__.lower()


def _taken(session_id: str) -> AgentError:
    return AgentError(f"there is a session {session_id!r} already", status=409, code="session_exists")
