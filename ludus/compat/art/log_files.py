"""The log files of a model, written by a user's loop: history and trajectories.

Knows: JSON lines, means.  Knows not: where the model is, its backend.

    <base_path>/<project>/models/<name>/  history.jsonl  trajectories/<split>/0012.jsonl
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError
from ludus.runs.metrics import merge_means

Logged = Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException]


class LogFiles:
    """The files of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self, groups: Sequence[TrajectoryGroup], *, split: str, step: int, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Append the groups, and a row to the history; returns the row's metrics.

        Metrics without a `/` in their names are prefixed by the split, as are the means over trajectories.
        """
        named = {name if "/" in name else f"{split}/{name}": float(value) for name, value in metrics.items()}
        row = {**{f"{split}/{name}": value for name, value in group_means(groups).items()}, **named}
        if groups:
            path = self.folder / "trajectories" / split / f"{step:04d}.jsonl"
            _append(path, [group.model_dump_json() for group in groups])
        at = datetime.now(UTC).isoformat(timespec="seconds")
        _append(self.folder / "history.jsonl", [json.dumps({"step": step, "recorded_at": at, **row})])
        return row

    def trajectories(self, split: str, step: int) -> list[TrajectoryGroup]:
        """The groups logged for this step."""
        path = self.folder / "trajectories" / split / f"{step:04d}.jsonl"
        if not path.exists():
            raise UserError(f"nothing was logged for split={split!r} and step={step}: there is no {str(path)!r}")
        return [TrajectoryGroup.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def history(self) -> list[dict[str, Any]]:
        """The rows of the history, oldest first."""
        path = self.folder / "history.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def best_step(self, metric: str) -> int | None:
        """The step with the largest mean of a logged metric; of equal ones, the latest. None: it was never logged."""
        logged: dict[int, list[float]] = {}
        for row in self.history():
            if math.isfinite(row.get(metric, math.nan)):
                logged.setdefault(row["step"], []).append(row[metric])
        return max(logged, key=lambda step: (fmean(logged[step]), step), default=None)


def as_groups(logged: Logged | None) -> list[TrajectoryGroup]:
    """The argument of `log` as groups; single trajectories and exceptions form one group."""
    given: list[Any] = list(logged or ())
    if given and not any(isinstance(each, TrajectoryGroup) for each in given):
        return [TrajectoryGroup(given)]
    for each in given:
        if not isinstance(each, TrajectoryGroup):
            raise UserError(
                f"{each!r:.100} of type {type(each).__name__} stands among groups; allowed: trajectory groups, or "
                "trajectories and exceptions, but not both"
            )
    return given


def group_means(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Mean reward, mean standard deviation of rewards within groups, share of exceptions, means of all metrics."""
    trajectories = [each for group in groups for each in group]
    num_failed = sum(len(group.exceptions) for group in groups)
    if not trajectories and not num_failed:
        return {}
    means: dict[str, float] = {"exception_rate": num_failed / (num_failed + len(trajectories))}
    if trajectories:
        means["reward"] = fmean(each.reward for each in trajectories)
        spreads = [pstdev(each.reward for each in group) for group in groups if len(group) > 1]
        if spreads:
            means["reward_std_dev"] = fmean(spreads)
        means |= merge_means(each.metrics for each in trajectories)
    grouped = merge_means(group.metrics for group in groups)
    return means | {f"group_{name}": value for name, value in grouped.items()}


def _append(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
