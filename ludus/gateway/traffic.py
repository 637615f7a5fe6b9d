"""Counts what a gateway was sent and how much CPU time the answers took.

Knows: counts and seconds.  Knows not: HTTP, sessions.
A client sends its whole history with every turn. The bytes sent and the decoding of their JSON therefore grow with the
square of the number of turns; the number of messages parsed, and the rest of the work, must not.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counters, since the gateway was created, over the requests that could be parsed."""

    num_requests: int = 0
    num_body_bytes: int = 0
    num_messages: int = 0
    """Messages in the requests' histories."""
    num_new_messages: int = 0
    """Messages that no earlier request of the session began with; only these are parsed."""
    json_s: float = 0.0
    """CPU seconds spent decoding JSON."""
    cpu_s: float = 0.0
    """CPU seconds of the answering thread in total, as of the end of the last request."""


class Traffic:
    """Counts on the gateway's loop. `stats` may be read on any thread."""

    def __init__(self) -> None:
        self._stats = GatewayStats()
        self._cpu_s = 0.0

    def add(self, *, num_body_bytes: int, num_messages: int, num_new_messages: int, json_s: float) -> None:
        """Count one parsed request."""
        old = self._stats
        # one new record for the old, so that other threads never see half of a request
        self._stats = GatewayStats(
            num_requests=old.num_requests + 1,
            num_body_bytes=old.num_body_bytes + num_body_bytes,
            num_messages=old.num_messages + num_messages,
            num_new_messages=old.num_new_messages + num_new_messages,
            json_s=old.json_s + json_s,
        )

    def end(self) -> None:
        """Note that a request was answered; called on the thread that answered it."""
        self._cpu_s = time.thread_time()

    def stats(self) -> GatewayStats:
        return dataclasses.replace(self._stats, cpu_s=self._cpu_s)
