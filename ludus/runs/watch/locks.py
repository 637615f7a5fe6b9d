"""Whether another process holds a lock on a file, without touching the lock.

Knows: flock, Linux's list of locks.  Knows not: what the file is.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

_LOCKS = Path("/proc/locks")


def is_held(path: Path) -> bool:
    """Whether somebody has the file, as `processes.files.hold` takes it. False where there is no file.

    On Linux the list of locks is read; elsewhere the lock is tried for a moment, shared.
    """
    try:
        found = path.stat()
        if sys.platform == "linux" and _LOCKS.exists():
            place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
            lines = _LOCKS.read_text(encoding="ascii").splitlines()
            return any(" FLOCK " in line and f" {place} " in line for line in lines)
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False
