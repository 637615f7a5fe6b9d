"""Reward over the steps of a run, kept in a file beside the peer's, and the two compared where they end.

Knows: lines of numbers, files.  Knows not: who trained.
A file is called NAME-seedN.jsonl and holds one object a step; other lines in it are not read.
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

LAST_STEPS = 10
"""Of 40: late enough to show what was learned, enough of them that 64 answers each give a mean within a percent."""
Line = Mapping[str, Any]


def curve_file(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-seed{seed}.jsonl"


def write_curve(path: Path, lines: Sequence[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_curve(path: Path) -> list[Line]:
    """The lines of a curve in order. Raises UserError if there is none."""
    if not path.is_file():
        raise UserError(f"no curve in {path}: record it once with --record")
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    found = [line for line in lines if "step" in line and "reward" in line]
    if not found:
        raise UserError(f"{path} holds no line with a step and a reward; record it again with --record")
    return found


def last_mean(lines: Sequence[Line], num: int = LAST_STEPS) -> tuple[float, float]:
    """Mean reward of the last steps, and its standard error."""
    return mean_and_error([float(line["reward"]) for line in lines[-num:]])


def compare_curves(ours: Mapping[int, Sequence[Line]], peer: Mapping[int, Sequence[Line]]) -> list[dict[str, Any]]:
    """A row for each seed, and one for all: the means of the last steps with their errors.

    The error of the last row is that of the mean over seeds. `no_worse`: ours is not below the peer's by more than
    two standard errors of the difference.
    """
    rows = [_row(str(seed), last_mean(ours[seed]), last_mean(peer[seed])) for seed in sorted(ours)]
    if len(rows) > 1:
        overall = (mean_and_error([row[side] for row in rows]) for side in ("ours", "peer"))
        rows.append(_row("all", *overall))
    return rows


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the error of a single value is 0."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), spread / math.sqrt(len(values))


def _row(seed: str, ours: tuple[float, float], peer: tuple[float, float]) -> dict[str, Any]:
    error = math.hypot(ours[1], peer[1])
    names = ("ours", "ours_error", "peer", "peer_error")
    figures = {name: significant(value) for name, value in zip(names, (*ours, *peer), strict=True)}
    return {"seed": seed, **figures, "no_worse": ours[0] >= peer[0] - 2 * error}
