"""How much memory this process holds, on the machine and on its GPU, and the most it ever held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

_BYTES_PER_RU_MAXRSS = 1 if sys.platform == "darwin" else 1024
_MIB = 2**20


def rss_mb() -> float:
    """Resident memory now, in MiB; its peak where the system does not tell the current value."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_rss_mb()
    return pages * resource.getpagesize() / _MIB


def card_mb(torch: Any = None) -> tuple[float, float] | None:
    """Memory of the current GPU that this process holds, and the most it ever held, in MiB. None: it uses no GPU.

    torch: None: the imported one, if any; a process that computes on a GPU has imported it.
    """
    torch = torch or sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.memory_reserved() / _MIB, torch.cuda.max_memory_reserved() / _MIB


def peak_rss_mb() -> float:
    """The most resident memory since the process started, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_RU_MAXRSS / _MIB
