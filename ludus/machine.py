"""The machine as far as this process may use it: cores by affinity and quota, how many of them others keep busy, what
they understand, and how much memory there is.

Knows: /proc, control groups, macOS's sysctl.  Knows not: what is computed, threads of libraries, compilers, cards.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Self

_LOOK_S = 0.2
"""Time over which the load is measured: /proc counts in hundredths of a second."""
_ROOT = Path("/")
INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "bmi2", "movbe", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    *("avx512_bf16", "avx512_fp16", "amx_bf16"),
    *("asimd", "asimdhp", "sve", "bf16", "i8mm"),
)
"""Those that decide how fast products are, as Linux spells them: of x86, then of Arm."""
_OF_APPLE = {
    "asimd": "hw.optional.AdvSIMD",
    "asimdhp": "hw.optional.arm.FEAT_FP16",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
}
"""How macOS spells them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one process has of it."""

    cores: int
    """On which it may run, at least 1."""
    quota: float = inf
    """Cores' worth of time that its control groups allow."""
    busy: float = 0.0
    """Of `cores`, how many others kept busy while it looked; who runs at a lower priority (`nice`) gives way."""
    processor: str = ""
    """Its name. Empty: the system does not tell."""
    instructions: tuple[str, ...] = ()
    """Those of INSTRUCTION_SETS that it has. Empty where the system does not tell."""
    memory_bytes: int | None = None
    """That there are, or that its control groups allow if that is less. None: the system does not tell."""
    whole_cores: int | None = None
    """Of `cores`, counting once those that are two threads of one core, and of an Apple processor the fast ones alone.
    None: the system does not tell."""

    @classmethod
    def look(cls, root: Path = _ROOT, *, seconds: float = _LOOK_S) -> Self:
        """Measures the load for `seconds`; 0: not at all. What the system does not tell is no limit and no load."""
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        before, own_before = _busy_s(root, allowed), time.process_time()
        if seconds > 0:
            time.sleep(seconds)
        others = _busy_s(root, allowed) - before - (time.process_time() - own_before)
        busy = max(0.0, others / seconds) if seconds > 0 else 0.0
        known = (*_processor(root), _memory_bytes(root), _whole_cores(root, allowed))
        return cls(len(allowed), _quota(root), busy, *known)

    @property
    def workers(self) -> int:
        """Processes that work side by side: whole cores that it may use, at least one."""
        return max(1, int(min(self.quota, self.cores)))

    @property
    def most_threads(self) -> int:
        """That compute together where nobody else computes, at least one: of the two threads of one core, either alone
        keeps its arithmetic busy."""
        return max(1, min(self.workers, self.whole_cores or self.cores))

    @property
    def threads(self) -> int:
        """That compute together: of `most_threads` as many as there are free cores, at least one.

        One thread more than there are cores for it, and all the others wait at the end of every parallel loop.
        """
        return max(1, min(self.most_threads, round(self.cores - self.busy)))


def free_memory_bytes(root: Path = _ROOT) -> int | None:
    """That programs may still take, files in memory that can be read again included. None: the system does not tell."""
    found = [
        int(line.split()[1]) * 1024
        for line in _text(root / "proc/meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for group in _groups(root, "memory"):
        limit = _memory_file(group, "max", "limit_in_bytes")
        used = _memory_file(group, "current", "usage_in_bytes")
        stat = {name: int(value) for name, value in map(str.split, _text(group / "memory.stat").splitlines())}
        # what lies in files of memory alone, such as those of /dev/shm, counts among the files too
        kept = stat.get("file", stat.get("total_cache", 0)) - stat.get("total_shmem", stat.get("shmem", 0))
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used) + kept))
    return min(found, default=None)


def _busy_s(root: Path, cores: Collection[int]) -> float:
    """Seconds that these cores have spent on user and system time since they began."""
    ticks = 0
    for line in _text(root / "proc/stat").splitlines():
        name, *values = line.split()  # user, nice, system, idle, …: man 5 proc
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += int(values[0]) + int(values[2])
    return float(ticks / os.sysconf("SC_CLK_TCK")) if ticks else 0.0


def _processor(root: Path) -> tuple[str, tuple[str, ...]]:
    """Its name and its instruction sets."""
    if _is_mac(root):
        name = _sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode() or platform.machine()
        return name, tuple(each for each in INSTRUCTION_SETS if any(_sysctl(_OF_APPLE.get(each, ""))))
    first = _text(root / "proc/cpuinfo").split("\n\n")[0]
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = facts.get("flags", facts.get("Features", "")).split()
    name = facts.get("model name") or (platform.processor() or platform.machine() if root == _ROOT else "")
    return name, tuple(each for each in INSTRUCTION_SETS if each in flags)


def _whole_cores(root: Path, cores: Collection[int]) -> int | None:
    if _is_mac(root):
        told = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        return int.from_bytes(told, sys.byteorder) or None
    folder = root / "sys/devices/system/cpu"
    siblings = {_text(folder / f"cpu{core}/topology/thread_siblings_list") for core in cores}
    return None if "" in siblings else len(siblings)


def _is_mac(root: Path) -> bool:
    return sys.platform == "darwin" and root == _ROOT


def _sysctl(name: str) -> bytes:
    """What macOS tells under this name: text, or the bytes of a number. Empty: nothing."""
    tell = ctypes.CDLL(None).sysctlbyname
    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    failed = tell(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else value.raw[: size.value]


def _memory_bytes(root: Path) -> int | None:
    limits = [inf]
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    if limits == [inf] and root == _ROOT and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))  # macOS
    for group in _groups(root, "memory"):
        text = _memory_file(group, "max", "limit_in_bytes")
        limits += [int(text)] if text.isdigit() else []
    least = min(limits)
    return None if least == inf else int(least)


def _memory_file(group: Path, *names: str) -> str:
    """What it says, by its name in version 2 of control groups, then in version 1. Empty: there is none."""
    return next(filter(None, (_text(group / f"memory.{name}").strip() for name in names)), "")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's control groups and those above them, as far as they are seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):  # version 2 has one hierarchy for all controllers
            base = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = base / path.lstrip("/")
            # In a container its own group may lie at the base, whatever it is called outside.
            yield from (each for each in (group, *group.parents) if each.is_relative_to(base))


def _quota(root: Path) -> float:
    """The smallest of the quotas of this process's control groups and of those above them, in cores."""
    return min((_quota_of(group) for group in _groups(root, "cpu")), default=inf)


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
