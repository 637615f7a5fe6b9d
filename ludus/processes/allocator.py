"""How the C library hands out the memory of this process.

Knows: glibc's mallopt.  Knows not: tensors.
"""

from __future__ import annotations

import ctypes
import os
import sys

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h; other C libraries take it for nothing, or have no mallopt
_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def share_one_arena() -> None:
    """New threads allocate where all others do: what one has freed serves the next.

    With an arena for each thread, as glibc has it, a process keeps the most that each of them ever held: half a
    gigabyte more where engine, trainer and loop take turns. A user who tunes malloc by the environment decides instead.
    """
    if sys.platform == "linux" and not any(name in os.environ for name in _VARIABLES):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_ARENA_MAX, 1)
