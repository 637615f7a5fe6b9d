"""How much memory this process holds, of the machine and of its card, and the most it ever held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

_BYTES_PER_RU_MAXRSS = 1 if sys.platform == "darwin" else 1024
_MIB = 2**20


def rss_mb() -> float:
    """Resident memory now, in MiB; the peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_rss_mb()
    return pages * resource.getpagesize() / _MIB


def card_mb(torch: Any = None) -> tuple[float, float] | None:
    """What this process holds of its current card, and the most it ever held, in MiB. None: it computes on none.

    torch: None: the one that is imported, if any is; who computes on a card has imported it.
    """
    torch = torch or sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.memory_reserved() / _MIB, torch.cuda.max_memory_reserved() / _MIB


def peak_rss_mb() -> float:
    """The most resident memory since the process started, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_RU_MAXRSS / _MIB
