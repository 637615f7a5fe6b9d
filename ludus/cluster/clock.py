"""A clock that stops while its process is suspended.

Knows: time.  Knows not: what is timed.
It measures how long a process has been silent: while a laptop sleeps, or a scheduler suspends a job, no heartbeats are
sent or received, and no process must be considered lost.
"""

from __future__ import annotations

import threading
import time

# The clock is read several times a second; a longer gap between two readings means that the process was suspended.
LONGEST_GAP_S = 2.0


class AwakeClock:
    """Seconds that the process was awake: a gap between two readings counts as at most `LONGEST_GAP_S`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = time.monotonic()
        self._awake_s = 0.0

    def now(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._awake_s += min(LONGEST_GAP_S, now - self._read_at)
            self._read_at = now
            return self._awake_s
