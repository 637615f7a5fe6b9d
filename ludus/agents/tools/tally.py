"""What the calls of one trajectory come to, as metrics.

Knows: numbers.  Knows not: tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any


class Tally:
    """Counts calls, errors and seconds, and keeps the numbers that tools give as metrics."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.num_calls = 0
        self._num_errors = 0
        self._time_s = 0.0
        self._numbers: dict[str, list[float]] = {}

    def add(
        self,
        name: str,
        *,
        failed: bool,
        time_s: float,
        reward: float | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """One call of the tool `name`. Of its metrics only numbers count."""
        self.num_calls += 1
        self._num_errors += failed
        self._time_s += time_s
        if reward is not None:
            self.rewards.append(reward)
        for key, value in (metrics or {}).items():
            if isinstance(value, Real):
                self._numbers.setdefault(f"tools/{name}/{key}", []).append(float(value))

    def metrics(self) -> dict[str, float]:
        """Calls, errors and seconds of all tools, and the mean of each number that a tool gave."""
        means = {key: sum(values) / len(values) for key, values in self._numbers.items()}
        counts = {"tools/num_calls": float(self.num_calls), "tools/num_errors": float(self._num_errors)}
        return {**counts, "tools/time_s": self._time_s, **means}
