"""The interface of trackers, and the data that they are given.

Knows: finished episodes, metrics.  Knows not: any tracker, the source of the data, how failures are handled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ludus.runs.metrics import Metrics
from ludus.runs.settings import TrackersSettings
from ludus.types import Episode


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is sent to a tracker."""

    name: str
    folder: Path
    settings: TrackersSettings
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration; empty if it cannot be read."""


@dataclass(frozen=True, slots=True)
class TrackedEpisode:
    """An episode that has ended."""

    episode: Episode
    step: int | None
    """The training step that it was played for. None: it was played for no step."""


@dataclass(frozen=True, slots=True)
class Report:
    """The run's report, made when it is called for; empty if it cannot be made."""

    page: Callable[[], str]
    """Returns a self-contained HTML page."""
    text: Callable[[], str]
    """Returns Markdown."""


class Tracker(Protocol):
    """A run in a tracker, in its own process. Methods raise whatever the tracker's client raises.

    After a failure, data may be given again; the tracker must then store it once, if its client supports that.
    """

    run_id: str
    """The run's id in the tracker; opening the tracker with it continues the same run."""
    most_per_step: int | None
    """Default limit on the episodes of one step that it is given. None: all."""

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        """Add metrics of a step. A step may come several times, and again if it was trained again."""

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        """Add one or more episodes."""

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        """The run has finished; not called if it was interrupted."""

    def close(self) -> None:
        """Wait until everything added was sent. A run that has not ended may be opened again."""


def numbers_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary, by dotted name."""
    found: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{below}": number for below, number in numbers_of(value).items()}
        elif isinstance(value, (int, float)):
            found[str(name)] = float(value)
    return found
