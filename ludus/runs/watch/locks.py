"""Checks whether another process holds a lock on a file, without taking the lock.

Knows: flock, Linux's list of locks, how file systems implement them.  Knows not: what the file is.
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
    """Whether a process holds the lock of `processes.files.hold` on the file. False if there is no file.

    On Linux this reads the list of locks, and asks a file server about locks of other machines; on other systems it
    takes a shared lock for a moment.
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
        # on btrfs and overlayfs the device in the list differs from the one that stat returns
        if words[3].startswith(f"{device}:") or _has_open(words[2], found):
            return True
    return False


def _has_open(process: str, found: os.stat_result) -> bool:
    """Whether the process has the file open; True if this may not be looked up."""
    try:
        return any(os.path.samestat(each.stat(), found) for each in Path(f"/proc/{process}/fd").iterdir())
    except FileNotFoundError:  # the process has ended, or is in another namespace
        return False
    except PermissionError:
        return True


def _is_known_to_server(file: BinaryIO) -> bool:
    """Whether an NFS server knows of a lock: there flock becomes a lock on a byte range, which can be queried. On other
    file systems there is no such lock."""
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)
