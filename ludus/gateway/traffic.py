"""What a gateway has been sent and what it took to answer.

Knows: counts and seconds.  Knows not: HTTP, sessions.
A client sends its whole history with every turn. What it sends and the decoding of its JSON therefore grow with the
square of the turns; the messages that are read anew, and the rest of the work, must not.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counters since the gateway was made, of the requests that were understood."""

    num_requests: int = 0
    num_body_bytes: int = 0
    num_messages: int = 0
    """In the requests' histories."""
    num_new_messages: int = 0
    """Of them, those that no earlier request of the session had at its beginning; only these are read."""
    json_s: float = 0.0
    """CPU seconds of decoding JSON."""
    cpu_s: float = 0.0
    """CPU seconds of the thread that answers, everything included; as of the end of the last request."""


class Traffic:
    """Counts on the gateway's loop. `stats` may be asked for on any thread."""

    def __init__(self) -> None:
        self._stats = GatewayStats()

    def __repr__(self) -> str:
        return f"Traffic({self._stats})"

    def add(self, *, num_body_bytes: int, num_messages: int, num_new_messages: int, json_s: float) -> None:
        """Counts one request that was read."""
        stats = self._stats
        self._stats = dataclasses.replace(
            stats,
            num_requests=stats.num_requests + 1,
            num_body_bytes=stats.num_body_bytes + num_body_bytes,
            num_messages=stats.num_messages + num_messages,
            num_new_messages=stats.num_new_messages + num_new_messages,
            json_s=stats.json_s + json_s,
        )

    def end(self) -> None:
        """Notes the time when a request was answered; called on the thread that answered it."""
        self._stats = dataclasses.replace(self._stats, cpu_s=time.thread_time())

    def stats(self) -> GatewayStats:
        return self._stats
