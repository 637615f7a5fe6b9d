"""Holds the metrics of a run as columns, which are extended as metrics.jsonl grows.

Knows: the file.  Knows not: what the numbers mean.
Invariant: after `update` it holds what `read_metrics` reads, in 8 bytes a number; each line is read once.
"""

from __future__ import annotations

import math
import os
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path

from ludus.runs.folder import RESUMED, metrics_of

_MOST_AT_ONCE = 64 * 2**20  # bytes of lines in memory at a time


class Curves:
    """Columns of metrics. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.jsonl"
        self._lock = threading.RLock()
        self._offset = self._inode = 0
        self._row_of: dict[int, int] = {}
        self._num_rows = 0
        """Includes rows of void steps."""
        self._columns: dict[str, array[float]] = {}
        """By metric; NaN where a step does not have it."""
        self._lines: list[int] = []
        """The step of each line."""
        self._num_replaced = 0

    def update(self) -> None:
        """Read lines written since the last update."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    found = os.fstat(file.fileno())
                    if found.st_size < self._offset or (self._offset and found.st_ino != self._inode):
                        self._num_replaced += 1
                        self._offset, self._row_of, self._columns, self._lines, self._num_rows = 0, {}, {}, [], 0
                    self._inode = found.st_ino
                    file.seek(self._offset)
                    while lines := file.readlines(_MOST_AT_ONCE):
                        for line in lines:
                            if line.endswith(b"\n"):  # otherwise the line is still being written
                                self._offset += len(line)
                                self._add(line)
                        if not lines[-1].endswith(b"\n"):
                            break
            except OSError:  # does not exist yet, or cannot be read, which `damages` reports
                return

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    @property
    def steps(self) -> list[int]:
        return sorted(self._row_of)

    @property
    def num_lines(self) -> int:
        return len(self._lines)

    @property
    def num_replaced(self) -> int:
        """How often steps that had been read became void: the run was resumed from an earlier one, or the file was
        replaced."""
        return self._num_replaced

    def steps_since(self, num_lines: int) -> list[int]:
        """Steps that have lines after the first `num_lines`, in ascending order."""
        return sorted(set(self._lines[num_lines:]))

    def series(self, name: str, steps: Iterable[int]) -> list[float | None]:
        """The metric at each of the steps. None: the step does not have it."""
        with self._lock:
            column, rows = self._columns.get(name), (self._row_of.get(step) for step in steps)
            if column is None:
                return [None for _ in rows]
            return [None if row is None or math.isnan(value := column[row]) else value for row in rows]

    def points(self, name: str) -> list[tuple[int, float]]:
        """Steps that have the metric, with its value; only finite values."""
        steps = self.steps
        pairs = zip(steps, self.series(name, steps), strict=True)
        return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]

    def at(self, step: int) -> dict[str, float]:
        """All metrics of a step."""
        with self._lock:
            row = self._row_of.get(step)
            if row is None:
                return {}
            return {name: column[row] for name, column in self._columns.items() if not math.isnan(column[row])}

    def last(self, name: str) -> float | None:
        points = self.points(name)
        return points[-1][1] if points else None

    def _add(self, line: bytes) -> None:
        found = metrics_of(line)
        if found is None:
            return
        step, numbers = found
        self._lines.append(step)
        if numbers.pop(RESUMED, None) is not None:
            kept = {each: row for each, row in self._row_of.items() if each <= step}
            self._num_replaced += len(kept) < len(self._row_of)
            self._row_of = kept
        if not numbers:
            return
        row = self._row_of.setdefault(step, self._num_rows)
        self._num_rows = max(self._num_rows, row + 1)
        for name in numbers:
            self._columns.setdefault(name, array("d"))
        for column in self._columns.values():
            column.extend([math.nan] * (self._num_rows - len(column)))
        for name, value in numbers.items():
            self._columns[name][row] = value
