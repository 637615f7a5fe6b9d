"""Whether another process holds a lock on a file, without touching the lock.

Knows: flock, Linux's list of locks, what file systems make of them.  Knows not: what the file is.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO

_LOCKS = Path("/proc/locks")
_FLOCK = "hhqqi"
"""C's `struct flock` on Linux: type, whence, start, length, process."""


def is_held(path: Path) -> bool:
    """Whether somebody has the file, as `processes.files.hold` takes it. False where there is no file.

    On Linux the list of locks is read, and a file server asked about those of other machines; elsewhere the lock is
    tried for a moment, shared.
    """
    try:
        with path.open("rb") as file:
            if sys.platform == "linux" and _LOCKS.exists():
                return _is_in_list(file) or _is_known_to_server(file)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False


def _is_in_list(file: BinaryIO) -> bool:
    found = os.fstat(file.fileno())
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    for line in _LOCKS.read_text(encoding="ascii").splitlines():
        _, _, after = line.partition(" FLOCK ")
        words = after.split()  # ADVISORY WRITE process device:inode from to
        if len(words) < 4 or words[3].rpartition(":")[2] != str(found.st_ino):
            continue
        # btrfs and overlays tell another device there than to who asks for the file's
        if words[3].startswith(f"{device}:") or _has_open(words[2], found):
            return True
    return False


def _has_open(process: str, found: os.stat_result) -> bool:
    """Whether the process has the file open; of one that may not be looked at it is believed."""
    try:
        return any(os.path.samestat(each.stat(), found) for each in Path(f"/proc/{process}/fd").iterdir())
    except FileNotFoundError:  # it has ended, or is none of ours
        return False
    except PermissionError:
        return True


def _is_known_to_server(file: BinaryIO) -> bool:
    """On NFS the lock is one of a range of bytes, of which the server can be asked. Other file systems know of none."""
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)
