"""What a tracker is given of a run, and what every tracker does with it.

Knows: finished episodes, metrics.  Knows not: any tracker, where what it is given comes from, what a failure means.
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
    """The run that is shown."""

    name: str
    folder: Path
    settings: TrackersSettings
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its configuration; empty if it cannot be read."""


@dataclass(frozen=True, slots=True)
class TrackedEpisode:
    """An episode that has ended."""

    episode: Episode
    step: int | None
    """The training step that asked for it. None: no step did."""


@dataclass(frozen=True, slots=True)
class Report:
    """The run's report, drawn when it is asked for; empty where it cannot be drawn."""

    page: Callable[[], str]
    """One file of HTML."""
    text: Callable[[], str]
    """Markdown."""


class Tracker(Protocol):
    """One run in a tracker, in a process of its own. Every method raises whatever the tracker's client raises.

    What was given before a failure may be given again: a tracker keeps it once where its client can.
    """

    run_id: str
    """What the tracker knows the run by: who opens it with that goes on with the same run."""
    most_per_step: int | None
    """Episodes of one step that it is given where the settings do not say how many. None: all."""

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        """Those of one step; several times for one step is possible, and a step that was trained again."""

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        """One or more."""

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        """The run has ended by itself."""

    def close(self) -> None:
        """Returns when all that was added has left. A run that has not ended may be opened again."""


def numbers_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary by their dotted names."""
    found: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{below}": number for below, number in numbers_of(value).items()}
        elif isinstance(value, (int, float)):
            found[str(name)] = float(value)
    return found
