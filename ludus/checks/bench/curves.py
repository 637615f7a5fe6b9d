"""Reward curves of runs: reads them from files, compares their ends, and draws them.

Knows: lines of numbers, files.  Knows not: what was trained.
A file is named NAME-seedN.jsonl and holds one object for each step; other lines are ignored.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.checks.bench.pairs import significant
from ludus.errors import UserError
from ludus.runs.plot import Series, write_reward_png

LAST_STEPS = 10
"""Of 40 steps: late enough to show what was learned, and enough for a mean within a percent at 64 answers a step."""
Line = Mapping[str, Any]
Curves = Mapping[int, Sequence[Line]]
"""The lines of each seed."""


def curve_file(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-seed{seed}.jsonl"


def write_curve(path: Path, lines: Sequence[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_curves(folder: Path, name: str) -> Curves:
    """The lines of every seed that `name` has in the folder. Raises UserError if there is none."""
    recorded(folder, (name,))
    found = {int(path.stem.rpartition("-seed")[2]): path for path in folder.glob(f"{name}-seed*.jsonl")}
    return {seed: _read(found[seed]) for seed in sorted(found)}


def recorded(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The names that have a curve in the folder. Raises UserError if none has."""
    found = tuple(name for name in names if any(folder.glob(f"{name}-seed*.jsonl")))
    if names and not found:
        files = ", ".join(str(curve_file(folder, name, 0)) for name in names)
        raise UserError(f"no curve {files}: record it once with ludus bench step --quality --record")
    return found


def _read(path: Path) -> list[Line]:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    steps = [line for line in lines if "step" in line and "reward" in line]
    if not steps:
        raise UserError(f"{path} holds no line with a step and a reward: record it again")
    return steps


def last_mean(lines: Sequence[Line], num: int = LAST_STEPS) -> tuple[float, float]:
    """Mean reward of the last steps, and its standard error."""
    return mean_and_error([float(line["reward"]) for line in lines[-num:]])


def compare_curves(curves: Mapping[str, Curves]) -> list[dict[str, Any]]:
    """A row for each name: the mean reward of the last steps, over seeds, and that of every seed.

    The error is the standard error of the mean over seeds; for one seed, over its last steps. `no_worse`: the first
    name is not below this one by more than two standard errors of the difference.
    Raises UserError for curves of unequal lengths, because a decaying learning rate makes such runs incomparable.
    """
    lengths = {f"{name}, seed {seed}": len(lines) for name, each in curves.items() for seed, lines in each.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UserError(f"only curves of equally many steps can be compared; there are {told}: record them again")
    rows: list[dict[str, Any]] = []
    ends: list[tuple[float, float]] = []
    for name, each in curves.items():
        by_seed = [last_mean(lines) for lines in each.values()]
        mean, error = mean_and_error([mean for mean, _ in by_seed]) if len(by_seed) > 1 else by_seed[0]
        ends.append((mean, error))
        figures = {"reward": significant(mean), "error": significant(error)}
        no_worse = ends[0][0] >= mean - 2 * math.hypot(ends[0][1], error)
        means = ", ".join(f"{seed}: {mean:.3f}" for seed, (mean, _) in zip(each, by_seed, strict=True))
        rows.append({"curve": name, **figures, "seeds": means, "no_worse": no_worse})
    return rows


def plot_curves(path: Path, curves: Mapping[str, Curves], *, title: str) -> None:
    """Draw each name's reward by step, the mean over its seeds, into a PNG. Raises UserError without matplotlib."""
    series = []
    for colour, (name, each) in enumerate(curves.items()):
        steps = zip(*each.values(), strict=True)
        points = tuple((lines[0]["step"], statistics.fmean(line["reward"] for line in lines)) for lines in steps)
        seeds = f"{len(each)} seed{'s' if len(each) > 1 else ''}"
        series.append(Series(f"{name}, {seeds}", points, colour))
    write_reward_png(path, series, title=title)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the error of a single value is 0."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), spread / math.sqrt(len(values))
