"""What a gateway remembers of each session's clients: which requests are retries, and which messages it has parsed.

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
    """Tells a retried request from a second, equal one, for one session. Used on the gateway's loop only.

    An SDK marks a retry with a counter, not with an id. A retry is therefore matched with an equal earlier request:
    the oldest whose answer did not reach the client, else the newest still running, else the newest delivered.
    """

    def __init__(self) -> None:
        self._by_digest: dict[str, list[_Attempt]] = {}
        self._by_key: dict[str, _Attempt] = {}

    def begin(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The retry key of a request that begins. None: its client does not mark retries.

        Raises AgentError if the retry header is not a count.
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
        """Note that the request under `key` has ended. delivered: its client got the whole answer."""
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
    """What is remembered of one session's clients."""

    attempts: Attempts = field(default_factory=Attempts)
    read: Mapping[str, ReadMessages] = field(default_factory=lambda: defaultdict(ReadMessages))
    """Messages already parsed, by protocol: the same JSON means different things in different protocols."""


class Clients:
    """The client state of every session that still exists. Used on the gateway's loop only."""

    def __init__(self) -> None:
        self._states: WeakKeyDictionary[Session, ClientState] = WeakKeyDictionary()

    def of(self, session: Session) -> ClientState:
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = ClientState()
        return state
