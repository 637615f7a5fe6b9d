"""Statistics that an agent logs during an episode; the mean of each is a metric of the episode.

Knows: the current episode.  Knows not: where metrics go.
Used as a module: `stats_tracker.get(workflow_context.stat_scope()).scalar(num_searches=3)`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import current_episode


@dataclass(frozen=True, slots=True)
class EpisodeNumbers:
    """The statistics of the current episode; outside of one they are dropped."""

    name: str
    """The requested scope. Not needed, as statistics belong to an episode, which is of training or of an evaluation."""

    def scalar(self, **values: Any) -> None:
        """Adds numbers, by name."""
        context = current_episode()
        if context is not None:
            for name, value in values.items():
                context.agent_metrics.setdefault(name, []).append(float(value))

    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Adds the seconds that the block takes, as `KEY_s`."""
        started_at = time.perf_counter()
        try:
            yield
        finally:
            self.scalar(**{f"{key}_s": time.perf_counter() - started_at})


def scalar(**values: Any) -> None:
    """Adds numbers, by name."""
    get().scalar(**values)


def record_timing(key: str) -> AbstractContextManager[None]:
    """Adds the seconds that the block takes, as `KEY_s`."""
    return get().record_timing(key)


def get(name: str = "") -> EpisodeNumbers:
    """The statistics of a scope."""
    return EpisodeNumbers(name)
