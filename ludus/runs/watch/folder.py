"""Finds the runs below a folder, and opens each when it is first requested.

Knows: where runs are.  Knows not: what is in them, HTTP.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.runs.watch.outline import outline
from ludus.runs.watch.question import Sampler
from ludus.runs.watch.run import NotThereError, WatchedRun

_DEPTH = 3
"""Levels of folders that are searched for runs: project, user, name."""
_SEPARATOR = "~"
"""Replaces "/" in ids of runs, because ids are part of URLs."""
_MARKS = ("run.db", "metrics.jsonl", "writer.lock")
_IDLE_S = 600.0
"""A run that nobody has asked for in this time is closed when another one is opened: what is kept of one may take a
hundred megabytes, and its index is kept up to date."""


class RunsFolder:
    """The runs below a folder. Safe to use from several threads."""

    def __init__(self, path: Path, *, is_expected: bool = False, sampler: Sampler | None = None) -> None:
        """path: a run's folder, or one with runs below it. Raises UserError if there is no such folder.

        is_expected: it is the folder of a run that may begin later.  sampler: answers with the runs' models; closed
        with this object. None: no model can be asked.
        """
        if not (path.is_dir() or is_expected):
            RunStore.check_there(path)
        self.path = path
        self.sampler = sampler
        self.is_run = is_expected or any((path / mark).is_file() for mark in _MARKS)
        self._lock = threading.Lock()
        self._open: dict[str, WatchedRun] = {}

    def ids(self) -> dict[str, Path]:
        """Folders of runs by id, which is the path relative to the watched folder."""
        if self.is_run:
            return {self.path.resolve().name: self.path}
        found: dict[str, Path] = {}
        for depth in range(1, _DEPTH + 1):
            for mark in _MARKS:
                for path in self.path.glob("/".join(["*"] * depth) + f"/{mark}"):
                    parts = path.parent.relative_to(self.path).parts
                    if not any(part.startswith((".", "damaged-")) for part in parts):
                        found.setdefault(_SEPARATOR.join(parts), path.parent)
        runs = set(found.values())
        return {run_id: path for run_id, path in found.items() if path.parent not in runs}  # not the branches of a run

    def outlines(self) -> list[dict[str, Any]]:
        """Outlines of all runs, the newest first."""
        found = [outline(path, run_id) for run_id, path in self.ids().items() if path.is_dir()]
        return sorted(found, key=lambda each: -(each["updated_at"] or 0.0))

    def run(self, run_id: str) -> WatchedRun:
        """The run, which is opened at the first call. Raises NotThereError if there is no such run."""
        with self._lock:
            known = self._open.get(run_id)
            if known is not None and not known.is_there:  # the folder was removed, or holds another run now
                self._open.pop(run_id).close()
                known = None
            if known is None:
                self._close_idle()
                path = self.ids().get(run_id)
                if path is None:
                    raise NotThereError(f"there is no run {run_id!r} in {str(self.path)!r}")
                if not any((path / mark).is_file() for mark in _MARKS):
                    raise NotThereError(f"the run {run_id!r} has not begun yet")
                self._open[run_id] = WatchedRun(path, run_id)
            self._open[run_id].used_at = time.monotonic()
            return self._open[run_id]

    def _close_idle(self) -> None:
        since = time.monotonic() - _IDLE_S
        for run_id in [run_id for run_id, run in self._open.items() if run.used_at < since]:
            self._open.pop(run_id).close()

    def close(self) -> None:
        """Closing twice is allowed."""
        with self._lock:
            for run in self._open.values():
                run.close()
            self._open.clear()
        if self.sampler is not None:
            self.sampler.close()


def check_watchable(path: Path, *, sampler: Sampler | None = None) -> RunsFolder:
    """The runs of the folder. Raises UserError if there are none yet; the message says which folders are allowed."""
    folder = RunsFolder(path, sampler=sampler)
    if not folder.ids():
        folder.close()
        raise UserError(f"there is no run in {str(path)!r}; name a run's folder, or one with runs such as 'runs'")
    return folder
