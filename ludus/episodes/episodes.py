"""Manages sessions until they are episodes: opens, finds, rewards, ends and expires them.

Knows: sessions, keys, rewards, idleness.  Knows not: HTTP, agents, who trains on the episodes.
Invariants: every session with a turn becomes one episode, whoever ends it and why; the episode has every reward that
was acknowledged; nothing else opens and keeps sessions of a model.

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

IDLE_S = 3600.0  # somebody who tries a model comes back to a conversation within the hour, or begins another
# Bounds the memory of sessions that unknown keys opened: a turn of 1000 tokens takes some 50 kB.
MAX_OPEN_SESSIONS = 1024
MAX_OPEN_TURNS = 1024
MAX_ENDED = 4096  # ended sessions whose keys are still known, so that their owners can reward and read them
SWEEPS = 4  # checks within the time that a session may be idle, so that it ends at most a quarter of that late
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
        """archive: None: episodes are only returned.  keys: None: its own.
        idle_s: sessions that get no request for so long are ended. None: none are.
        most_by_key: at most so many sessions opened by unknown keys are open at once; then the least recently used one
        ends. None: no bound.
        fit: changes the spec of a session, which has its id, before it is opened.
        """
        self.archive = archive
        self.keys = SessionKeys() if keys is None else keys
        self._recorder = recorder
        self._idle_s = idle_s
        self._most_by_key = most_by_key
        self._fit = fit
        self._lock = threading.Lock()
        """Guards the fields below; never held for long."""
        self._open: dict[str, Handle] = {}
        self._retired: list[Handle] = []
        """Sessions whose key was given another session; they end at the next sweep."""
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        """Ids of the latest ended sessions by the digests of their keys, the oldest first."""
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

        The id may be one that the archive knows: an episode that was broken off is played again.
        """
        key = new_key() if key is None else key
        return self._hold(spec, key, is_given=True), key

    async def open_new(self, spec: SessionSpec) -> tuple[Handle, str]:
        """As `open`, but raises AgentError 409 also for the id of a session that has ended."""
        if spec.id is not None and self.archive is not None and await asyncio.to_thread(self.archive.has, spec.id):
            raise _taken(spec.id)
        return self.open(spec)

    def open_for_key(self, key: str, spec: SessionSpec = _BY_KEY) -> Handle:
        """A new session for this key; '' is no key. The session that the key named before ends."""
        known = self.keys.get(key) if key else None
        if known is not None and not known.is_given:
            self._retire(known)
        by_key = [handle for handle in self.open_sessions if not handle.is_given]
        if self._most_by_key is not None and len(by_key) >= self._most_by_key:
            self._retire(min(by_key, key=lambda handle: handle.used_at))
        return self._hold(spec, key or new_key(), is_given=False)

    def find(self, session_id: str) -> Handle | None:
        """The open session of this id. None: there is none, or it has ended."""
        return self._open.get(session_id)

    def by_key(self, key: str) -> str | None:
        """The id of the session with this key, open or ended. None: there is none, or it ended long ago."""
        handle = self.keys.get(key)
        return self._ended.get(digest(key)) if handle is None else handle.id

    # ---- rewards

    def reward(self, session_id: str, value: object) -> dict[str, float]:
        """Give a session a reward, as for `RewardSheet.add`; returns all its rewards by turn id.

        May wait for a disk. An ended session is rewarded in the archive. Raises AgentError if the turn or the session
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
            assert self.archive is not None, "the episode was found in it"
            self.archive.change(changed)
            return dict(changed.rewards)

    def episode(self, session_id: str) -> Episode:
        """The episode of an ended session, from the archive. Raises AgentError 404."""
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
        """End a session and keep its episode. Ending it again returns the same episode.

        If the episode cannot be kept, the session stays, closed, and can be ended again.
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
        """End sessions that were idle for too long, and those whose key was given another session."""
        for handle in tuple(self._retired):
            await self.end(handle, Reported("ok", "its key was given a new session"))
        if self._idle_s is None:
            return
        now = self.keys.clock()
        for handle in self.open_sessions:
            if now - handle.used_at >= self._idle_s and handle.session.stats().num_running == 0:
                await self.end(handle, Idle(self._idle_s))

    async def sweep(self) -> None:
        """Call `expire` from time to time, until cancelled."""
        idle_s = MOST_SECONDS_BETWEEN_SWEEPS if self._idle_s is None else self._idle_s / SWEEPS
        while True:
            await asyncio.sleep(min(idle_s, MOST_SECONDS_BETWEEN_SWEEPS))
            try:
                await self.expire()
            except LudusError:  # such as a full disk: the sessions are still there, and are tried again next time
                logger.exception("sessions.save_failed")

    async def aclose(self, reason: str) -> None:
        """End every open session."""
        await self.expire()
        for handle in self.open_sessions:
            await self.end(handle, Closed(reason))

    # ---- inside

    def _hold(self, spec: SessionSpec, key: str, *, is_given: bool) -> Handle:
        made = f"{'s' if is_given else 'open'}-{uuid.uuid4().hex[:16]}"
        spec = self._fit(spec if spec.id is not None else replace(spec, id=made))
        assert spec.id is not None, "one was made"
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
        """Free the session's key now, and have it ended by the next sweep: ending may wait, and this must not."""
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
        """Make and keep the episode, once, even if the session is ended again after a cancellation."""
        with handle.lock:
            if handle.episode is None:
                episode = finished()
                if self.archive is not None and (handle.is_given or record.turns):
                    self.archive.keep(episode, handle.spec)
                elif self.archive is not None:  # opened by an unknown key, and never used
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
    """Why the session is closed, in words for its clients."""
    match ending:
        case Reported(reason=reason) | Closed(reason) | Cancelled(reason) | Lost(reason) if reason:
            return reason
        case _:
            return type(ending).__name__.lower()


def _taken(session_id: str) -> AgentError:
    return AgentError(f"there is a session {session_id!r} already", status=409, code="session_exists")
