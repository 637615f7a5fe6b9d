"""A curriculum by success: rows whose last groups were all solved, or all hopeless, are skipped for some epochs.

Knows: the results of each row's groups.  Knows not: who played them, in which order rows come.
Invariant: which rows rest depends only on the settled results, not on the order in which they came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Self

from ludus.algorithms.base import is_at_least
from ludus.errors import UserError
from ludus.rollout.settings import CurriculumSettings
from ludus.types import Episode

Rest = Literal["solved", "hopeless"]
"""Why a row rests, that is, is skipped for now."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The most recent groups of a row, if all were solved or all were hopeless."""

    epoch: int
    """The epoch of the last of them."""
    kind: Rest
    length: int


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """The state that a resumed run needs."""

    streaks: Mapping[str, Streak] = field(default_factory=dict)
    """By row name. A row that is not listed has no streak."""
    skipped: Mapping[Rest, int] = field(default_factory=dict)
    """How many rows were skipped for the batch that is taken next."""

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """From the JSON of `dataclasses.asdict`."""
        return cls({name: Streak(**streak) for name, streak in values["streaks"].items()}, values["skipped"])


class Curriculum:
    """Decides which rows rest. Results count only from `settle` on, so that it does not matter which came in first."""

    def __init__(self, settings: CurriculumSettings, state: CurriculumState | None = None) -> None:
        """state: of the run that is resumed. None: a new run."""
        state = state or CurriculumState()
        self._settings = settings
        self._streaks = dict(state.streaks)
        self._skipped: dict[Rest, int] = {"solved": 0, "hopeless": 0, **state.skipped}
        self._recorded: list[tuple[str, int, float]] = []

    def __repr__(self) -> str:
        return f"Curriculum(streaks={len(self._streaks)}, skipped={self._skipped})"

    @property
    def state(self) -> CurriculumState:
        return CurriculumState(dict(self._streaks), dict(self._skipped))

    def rests(self, row: str, epoch: int) -> bool:
        """Whether to skip the row when it comes up in this epoch."""
        streak, settings = self._streaks.get(row), self._settings
        is_long = streak is not None and streak.length >= settings.last_groups
        return streak is not None and is_long and epoch <= streak.epoch + settings.skip_epochs

    def last_played(self, row: str) -> int:
        """The epoch in which a resting row was last played."""
        return self._streaks[row].epoch

    def skip(self, row: str) -> None:
        """Count a resting row as skipped."""
        self._skipped[self._streaks[row].kind] += 1

    def record(self, row: str, epoch: int, episodes: Sequence[Episode]) -> None:
        """Note the result of a complete group of the row; it counts from the next `settle` on.

        Raises UserError if no episode reports the metric that the curriculum uses.
        """
        metric = self._settings.metric
        if metric == "reward":
            values = [episode.reward for episode in episodes if episode.reward is not None]
        else:  # as in evaluations, an episode that says nothing about success had none
            is_told = any(metric in episode.metrics for episode in episodes)
            values = [episode.metrics.get(metric, 0.0) for episode in episodes] if is_told else []
        if values:
            self._recorded.append((row, epoch, fmean(values)))
        elif episodes:
            known = sorted({name for episode in episodes for name in episode.metrics})
            raise UserError(
                f"train_dataset.curriculum.metric={metric!r} is reported by no episode of {row}, which report "
                f"{', '.join(known) or 'no metrics'}; return it as Result(metrics={{{metric!r}: …}}), or set "
                "train_dataset.curriculum.metric to one of those or to 'reward'"
            )

    def settle(self) -> Mapping[Rest, int]:
        """Make the recorded results count. Returns how many rows were skipped since the last call."""
        for row, epoch, success in sorted(self._recorded):
            self._count(row, epoch, success)
        self._recorded = []
        skipped, self._skipped = self._skipped, {"solved": 0, "hopeless": 0}
        return skipped

    def _count(self, row: str, epoch: int, success: float) -> None:
        kind, before = self._kind(success), self._streaks.get(row)
        if kind is None:
            self._streaks.pop(row, None)
        elif before is None or before.kind != kind:
            self._streaks[row] = Streak(epoch, kind, 1)
        elif epoch != before.epoch:  # else it is a group of an interrupted run, played again
            self._streaks[row] = Streak(epoch, kind, before.length + 1)

    def _kind(self, success: float) -> Rest | None:
        settings = self._settings
        if settings.solved is not None and is_at_least(success, settings.solved):
            return "solved"
        return "hopeless" if settings.hopeless is not None and is_at_least(settings.hopeless, success) else None
