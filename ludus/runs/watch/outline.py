"""A run in one line, for a list of runs: what can be said of it without opening its database.

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

_LAST_BYTES = 2**16  # some dozens of lines: of what is not in them the list says nothing


def outline(folder: Path, run_id: str) -> dict[str, Any]:
    """What a list of runs says of one; the last line of its metrics is read, and no more."""
    numbers = _last_numbers(folder / "metrics.jsonl")
    files = [folder / name for name in ("metrics.jsonl", "run.db", "run.db-wal", "summary.json")]
    # an empty one is made by who looks at a database
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
    """`running`, `finished`, `interrupted`, or `unknown` of what nobody ever wrote here."""
    with suppress(UserError):
        if read_summary(folder) is not None and not is_held(folder / LOCK):
            return "finished"
    if is_held(folder / LOCK):
        return "running"
    return "interrupted" if (folder / LOCK).exists() else "unknown"


def _last_numbers(path: Path) -> dict[str, Any]:
    """The newest of each number in the last lines of the file, and their step."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        numbers: dict[str, Any] = {}
        for step, found in metric_lines(file.read().splitlines()).rows:
            numbers |= {**found, "step": step}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}
    return {}
