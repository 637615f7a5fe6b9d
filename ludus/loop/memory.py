"""How much memory this process holds, and the most it ever held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_BYTES_PER_RU_MAXRSS = 1 if sys.platform == "darwin" else 1024
_MIB = 2**20


def rss_mb() -> float:
    """Resident memory now, in MiB; the peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_rss_mb()
    return pages * resource.getpagesize() / _MIB


def peak_rss_mb() -> float:
    """The most resident memory since the process started, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_RU_MAXRSS / _MIB
