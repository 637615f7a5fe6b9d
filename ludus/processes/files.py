"""Our cache folder, durable writes, and files that only one process may hold.

Knows: files, folders.  Knows not: what is in them.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ludus.errors import UserError

OWNER_ALONE = 0o700
"""Mode of folders whose content others must not read."""


def user_cache() -> Path:
    """Our folder in the user's cache; it need not exist yet. Raises UserError if nothing says where that is."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without an entry in passwd, as in some containers
        raise UserError("this user has no home folder; set HOME, or XDG_CACHE_HOME to another folder") from None
    return Path(base) / "ludus"


def sync(path: Path) -> None:
    """Sync a file, or a folder's list of files, so that it survives a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file atomically; text is written as UTF-8."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


def remembered(path: Path, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """The numbers in a cache file; if there is none, those from `measure`, which are stored.

    If several processes measure at once, the first to finish decides for all. If nothing can be stored, each measures
    for itself.
    """
    found = _numbers(path)
    if found is not None:
        return found
    with suppress(OSError):
        path.unlink(missing_ok=True)  # if it is there it is damaged
    measured = dict(measure())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.part")
        draft.write_text(json.dumps(measured), encoding="utf-8")
        with suppress(OSError):  # another process was first, or the file system has no hard links
            os.link(draft, path)
        if path.exists():
            draft.unlink()
        else:
            draft.replace(path)
    return _numbers(path) or measured


def _numbers(path: Path) -> dict[str, float] | None:
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()} or None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def set_aside(path: Path) -> Path:
    """Rename a damaged file to damaged-NAME (or damaged-2-NAME …), which nothing reads. Returns the new path."""
    numbers = itertools.count(2)
    free = path.with_name(f"damaged-{path.name}")
    while free.exists():
        free = path.with_name(f"damaged-{next(numbers)}-{path.name}")
    return path.rename(free)


def free_bytes(folder: Path) -> int:
    """Free disk space for a folder, which need not exist yet."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    return shutil.disk_usage(there).free


def lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed or the process ends. False: another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold(path: Path) -> int | None:
    """Open (or create) and lock a file; the lock is held until it is closed. None: another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
