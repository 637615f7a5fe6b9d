"""How the C library hands out the memory of this process.

Knows: glibc's mallopt and malloc_trim.  Knows not: tensors.
"""

from __future__ import annotations

import ctypes
import os
import sys

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h; other C libraries take it for nothing, or have no mallopt
_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def give_free_back() -> None:
    """Return to the system what is free, which else counts as this process's. Does nothing where glibc is not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def share_one_arena() -> None:
    """Make all threads share one malloc arena, so that memory freed by one is reused by the next.

    With an arena per thread, glibc's default, a process keeps the most that each thread ever held: half a gigabyte more
    when engine, trainer and loop take turns. Does nothing if the user tunes malloc through the environment.
    """
    if sys.platform == "linux" and not any(name in os.environ for name in _VARIABLES):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_ARENA_MAX, 1)
