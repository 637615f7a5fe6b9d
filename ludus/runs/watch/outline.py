"""Summarizes a run in one row of the list of runs, without opening its database.

Knows: the files of a run's folder.  Knows not: episodes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.runs.folder import LOCK, metric_lines, read_summary
from ludus.runs.watch.locks import is_held

_LAST_BYTES = 2**16  # some dozens of lines; older metrics are not in the list


def outline(folder: Path, run_id: str) -> dict[str, Any]:
    """The row of a run in the list of runs. Reads only the last lines of its metrics."""
    numbers = _last_numbers(folder / "metrics.jsonl")
    files = [folder / name for name in ("metrics.jsonl", "run.db", "run.db-wal", "summary.json")]
    # opening a database for reading creates empty files
    times = [path.stat().st_mtime for path in files if path.is_file() and path.stat().st_size]
    return {
        "id": run_id,
        "name": folder.name,
        "path": str(folder),
        "state": state_of(folder),
        "num_steps": numbers.get("step"),
        "updated_at": max(times, default=None),
        "reward": numbers.get("rollout/reward"),
        "success": numbers.get("rollout/success"),
    }


def state_of(folder: Path) -> str:
    """`running`, `finished`, `interrupted`, or `unknown` if no process has written the run."""
    with suppress(UserError):
        if read_summary(folder) is not None and not is_held(folder / LOCK):
            return "finished"
    if is_held(folder / LOCK):
        return "running"
    return "interrupted" if (folder / LOCK).exists() else "unknown"


def _last_numbers(path: Path) -> dict[str, Any]:
    """The newest value of each metric in the last lines of the file, and the step."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        numbers: dict[str, Any] = {}
        for step, found in metric_lines(file.read().splitlines()).rows:
            numbers |= {**found, "step": step}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}
    return {}
