"""A curriculum by success: rows that all episodes of their last groups solved, or none did, sit out some epochs.

Knows: what became of the groups of each row.  Knows not: who played them, in which order rows come.
Invariant: what rests is a function of the results that were settled, in whatever order those came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Self

from ludus.errors import UserError
from ludus.rollout.settings import CurriculumSettings
from ludus.types import Episode

Rest = Literal["solved", "hopeless"]
"""Why a row rests."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The last groups of a row, which all were solved, or all were hopeless."""

    epoch: int
    """Of the last of them."""
    kind: Rest
    length: int


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """What a run that goes on later has to know."""

    streaks: Mapping[str, Streak] = field(default_factory=dict)
    """By the row's name; of the others nothing is known that matters."""
    skipped: Mapping[Rest, int] = field(default_factory=dict)
    """Rows that were passed over for the batch that is taken next."""

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of one, and JSON of that."""
        return cls({name: Streak(**streak) for name, streak in values["streaks"].items()}, values["skipped"])


class Curriculum:
    """Which rows rest. Results count from `settle` on, so that what rests does not depend on who is done first."""

    def __init__(self, settings: CurriculumSettings, state: CurriculumState | None = None) -> None:
        """state: of an earlier run that goes on. None: it begins."""
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
        """The row is to be passed over when it comes up in this epoch."""
        streak, settings = self._streaks.get(row), self._settings
        is_long = streak is not None and streak.length >= settings.last_groups
        return streak is not None and is_long and epoch <= streak.epoch + settings.skip_epochs

    def last_played(self, row: str) -> int:
        """The epoch of the last group of a row that rests."""
        return self._streaks[row].epoch

    def skip(self, row: str) -> None:
        """A row that rests was passed over."""
        self._skipped[self._streaks[row].kind] += 1

    def record(self, row: str, epoch: int, episodes: Sequence[Episode]) -> None:
        """A group of the row is complete; it counts once it is settled.

        Raises UserError if no episode reports what the curriculum goes by.
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
        """What was recorded counts from now on. Returns what was passed over since the last time."""
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
        if settings.solved is not None and success >= settings.solved:
            return "solved"
        return "hopeless" if settings.hopeless is not None and success <= settings.hopeless else None
