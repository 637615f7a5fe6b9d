"""The machine as far as this process may use it: cores by affinity and quota, and how many of them others keep busy.

Knows: /proc, control groups.  Knows not: what is computed, threads of libraries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Self

_LOOK_S = 0.2
"""Time over which the load is measured: /proc counts in hundredths of a second."""
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Machine:
    """What one process has of it."""

    cores: int
    """On which it may run, at least 1."""
    quota: float = inf
    """Cores' worth of time that its control groups allow."""
    busy: float = 0.0
    """Of `cores`, how many others kept busy while it looked; who runs at a lower priority (`nice`) gives way."""

    @classmethod
    def look(cls, root: Path = _ROOT, *, seconds: float = _LOOK_S) -> Self:
        """Measures the load for `seconds`; 0: not at all. What the system does not tell is no limit and no load."""
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        before, own_before = _busy_s(root, allowed), time.process_time()
        if seconds > 0:
            time.sleep(seconds)
        others = _busy_s(root, allowed) - before - (time.process_time() - own_before)
        return cls(len(allowed), _quota(root), max(0.0, others / seconds) if seconds > 0 else 0.0)

    @property
    def workers(self) -> int:
        """Processes that work side by side: whole cores that it may use, at least one."""
        return max(1, int(min(self.quota, self.cores)))

    @property
    def threads(self) -> int:
        """That compute together: whole cores that it may use and that are free, at least one.

        One thread more than there are cores for it, and all the others wait at the end of every parallel loop.
        """
        return max(1, min(self.workers, round(self.cores - self.busy)))


def _busy_s(root: Path, cores: Collection[int]) -> float:
    """Seconds that these cores have spent on user and system time since they began."""
    ticks = 0
    for line in _text(root / "proc/stat").splitlines():
        name, *values = line.split()  # user, nice, system, idle, …: man 5 proc
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += int(values[0]) + int(values[2])
    return float(ticks / os.sysconf("SC_CLK_TCK")) if ticks else 0.0


def _quota(root: Path) -> float:
    """The smallest of the quotas of this process's control groups and of those above them, in cores."""
    quotas = [inf]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):  # version 2 has one hierarchy for all controllers
            base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            group = base / path.lstrip("/")
            # In a container its own group may lie at the base, whatever it is called outside.
            quotas += [_quota_of(each) for each in (group, *group.parents) if each.is_relative_to(base)]
    return min(quotas)


def _quota_of(group: Path) -> float:
    first = " ".join(_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    limit, _, period = (_text(group / "cpu.max") or first).partition(" ")
    try:
        cores = float(limit) / float(period)
    except ValueError:  # max, or no such file
        return inf
    return cores if cores > 0 else inf  # -1: no limit


def _text(path: Path) -> str:
    """Nothing where there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
