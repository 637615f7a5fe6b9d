"""What a gateway knows of each session's clients: which requests are retries, and what it has read of their messages.

Knows: headers, bodies by their digests.  Knows not: keys, what sessions do.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from ludus.episodes.session import Session
from ludus.gateway.dialects.base import ReadMessages
from ludus.http.numbers import read_count

RETRY_COUNT = "x-stainless-retry-count"


@dataclass(slots=True)
class _Attempt:
    key: str
    state: Literal["running", "lost", "delivered"] = "running"


class Attempts:
    """Distinguishes a request sent twice from two equal requests, for one session. Used from the gateway's loop alone.

    An SDK marks a retry with a count, not with a name. A retry therefore takes over the oldest equal request whose
    answer did not reach the client, else the newest that still runs, else the newest that was delivered.
    """

    def __init__(self) -> None:
        self._by_digest: dict[str, list[_Attempt]] = {}
        self._by_key: dict[str, _Attempt] = {}

    def begin(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The retry key of a request that begins. None: its client never says that it retries.

        Raises AgentError if it says so with something that is no count.
        """
        named = headers.get("idempotency-key")
        if named:
            return f"named:{named}"
        count = headers.get(RETRY_COUNT)
        if count is None:
            return None
        is_retry = read_count(count, RETRY_COUNT) > 0
        body_digest = hashlib.sha256(body).hexdigest()
        attempts = self._by_digest.setdefault(body_digest, [])
        attempt = _retried(attempts) if is_retry else None
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


@dataclass(slots=True)
class ClientState:
    """Of one session's clients."""

    attempts: Attempts = field(default_factory=Attempts)
    read: Mapping[str, ReadMessages] = field(default_factory=lambda: defaultdict(ReadMessages))
    """By protocol: the same JSON means something else in each."""


class Clients:
    """The clients of all sessions, as long as these are there. Used from the gateway's loop alone."""

    def __init__(self) -> None:
        self._states: WeakKeyDictionary[Session, ClientState] = WeakKeyDictionary()

    def of(self, session: Session) -> ClientState:
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = ClientState()
        return state
