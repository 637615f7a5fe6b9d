"""Whose session a request belongs to: secrets in URL paths and keys in headers, and which requests are retries.

Knows: secrets, sessions by name.  Knows not: HTTP beyond header values, what sessions do.
Rules: a path names the session, and any key is then accepted unless it names another session (403). Without a path the
bearer token or `x-api-key` names it. A name nobody has is 401, or opens a session of its own where that is allowed;
there a request without a key is a session by itself. Of a key only its digest is kept, and digests are what is looked
up: who measures how long an answer takes learns nothing about any key.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.gateway.dialects.base import ReadMessages
from ludus.http.keys import check_key, digest, keys_of, new_key

Clock = Callable[[], float]


@dataclass(slots=True)
class _Attempt:
    key: str
    state: Literal["running", "lost", "delivered"] = "running"


class Attempts:
    """Tells a request sent twice from two equal requests, for one session. Used from the gateway's loop alone.

    An SDK marks a retry with a count, not with a name. A retry therefore takes over the oldest equal request whose
    answer did not reach the client, else the newest that still runs, else the newest that was delivered.
    """

    def __init__(self) -> None:
        self._by_digest: dict[str, list[_Attempt]] = {}
        self._by_key: dict[str, _Attempt] = {}

    def begin(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The retry key of a request that begins. None: its client never says that it retries."""
        named = headers.get("idempotency-key")
        if named:
            return f"named:{named}"
        count = headers.get("x-stainless-retry-count")
        if count is None or not count.isdigit():
            return None
        body_digest = hashlib.sha256(body).hexdigest()
        attempts = self._by_digest.setdefault(body_digest, [])
        attempt = _retried(attempts) if int(count) else None
        if attempt is None:
            attempt = _Attempt(f"sdk:{body_digest}:{len(attempts)}")
            attempts.append(attempt)
            self._by_key[attempt.key] = attempt
        attempt.state = "running"
        return attempt.key

    def end(self, key: str | None, *, delivered: bool) -> None:
        """The request under `key` has ended; `delivered`: its client has the whole answer."""
        if key in self._by_key:
            self._by_key[key].state = "delivered" if delivered else "lost"


def _retried(attempts: list[_Attempt]) -> _Attempt | None:
    lost = [attempt for attempt in attempts if attempt.state == "lost"]
    if lost:
        return lost[0]
    running = [attempt for attempt in attempts if attempt.state == "running"]
    rest = running or attempts
    return rest[-1] if rest else None


@dataclass(slots=True, eq=False)
class Seat:
    """A session that can be reached from outside."""

    session: Session
    agent: str = ""
    """Tag of the agent that asks, where a request names none."""
    max_turns: int | None = None
    """After so many turns the key is given a new session, where unknown keys open one. None: never."""
    attempts: Attempts = field(default_factory=Attempts)
    read: Mapping[str, ReadMessages] = field(default_factory=lambda: defaultdict(ReadMessages))
    """By protocol: the same JSON means something else in each."""
    used_at: float = 0.0
    """When a request last named it, by the clock of its `Sessions`."""

    @property
    def is_full(self) -> bool:
        return self.max_turns is not None and self.session.stats().num_turns >= self.max_turns


OpenMode = Callable[[str], Seat]
"""Gives a seat to a key that names none; '' for a request without a key."""


class Sessions:
    """All sessions that can be reached. Safe to use from any thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._seats: dict[bytes, Seat] = {}
        """By the digest of the key, so that the time a look-up takes tells nothing about any key."""

    def add(self, session: Session, *, key: str | None = None, agent: str = "") -> str:
        """The secret under which `session` is reached until `remove`. key: None makes a new one."""
        secret = new_key() if key is None else key
        self.seat(secret, Seat(session, agent=agent))
        return secret

    def seat(self, key: str, seat: Seat) -> None:
        """From now on the key names this seat."""
        seat.used_at = self.clock()
        with self._lock:
            self._seats[digest(key)] = seat

    def remove(self, secret: str) -> None:
        """From now on the secret is unknown. Removing twice is allowed."""
        self.remove_digest(digest(secret))

    def remove_digest(self, key: bytes, seat: Seat | None = None) -> None:
        """The same by digest. seat: only if the key still names this one. None: whatever it names."""
        with self._lock:
            if seat is None or self._seats.get(key) is seat:
                self._seats.pop(key, None)

    def find(self, path_secret: str | None, headers: Mapping[str, str], *, open_mode: OpenMode | None = None) -> Seat:
        """The session that a request names, which is in use from now on. Raises AgentError 401 or 403.

        open_mode: gives a seat to a key that names none yet, or a full one. None: such a key is refused.
        """
        keys = keys_of(headers)
        by_path = None if path_secret is None else self._get(path_secret)
        if path_secret is not None and by_path is None:
            raise AgentError("No session has this URL; it may have ended.", status=401, code="invalid_session")
        found = [by_path, *(self._get(key) for key in keys)]
        named = [seat for seat in found if seat is not None]
        if any(seat is not named[0] for seat in named):
            raise AgentError(
                "URL and key name different sessions; use the key given with this URL.",
                status=403,
                code="session_mismatch",
            )
        if open_mode is not None and path_secret is None and (not named or named[0].is_full):
            named = [open_mode(keys[0] if keys else "")]
        if not named:
            raise unknown_key(keys[0] if keys else "")
        named[0].used_at = self.clock()
        return named[0]

    def _get(self, key: str) -> Seat | None:
        with self._lock:
            return self._seats.get(digest(key))

    def __len__(self) -> int:
        return len(self._seats)

    def __repr__(self) -> str:
        return f"Sessions(num_sessions={len(self)})"


def check_admin_key(host: str, admin_key: str | None) -> None:
    """Raises UserError where strangers could do what only the admin may.

    admin_key: the one that was given. None: one will be made.
    """
    check_key("a gateway", host, admin_key, variable="LUDUS_ADMIN_KEY")


def unknown_key(key: str) -> AgentError:
    if not key:
        return AgentError(
            "No API key was given; send the session's key as a bearer token, or use the session's URL.",
            status=401,
            code="invalid_api_key",
        )
    # The key may be somebody's real one: show only what tells the reader which of his keys it was.
    shown = f"{key[:3]}***" if len(key) > 8 else "***"
    return AgentError(
        f"Incorrect API key provided: {shown}; no session has it, or the session has ended.",
        status=401,
        code="invalid_api_key",
    )
