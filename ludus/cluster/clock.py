"""A clock that stands still while its process does.

Knows: time.  Knows not: who asks.
Silence is measured with it: when a laptop sleeps, or a scheduler suspends a job, nobody beats and nobody listens, and
nobody has been lost.
"""

from __future__ import annotations

import threading
import time

# Who waits for signs of life polls several times a second; a longer pause between two polls was no time spent waiting.
LONGEST_GAP_S = 2.0


class AwakeClock:
    """Seconds that its readers were awake: between two readings no more than `LONGEST_GAP_S` go by."""

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
