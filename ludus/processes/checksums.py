"""Checksums of the files in a folder, for detecting damage later.

Knows: files, folders.  Knows not: what is in them, who stores the sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Checksums = Mapping[str, str]
"""SHA-256 in hexadecimal, as printed by `sha256sum`, by the file's path in the folder."""


def checksums(folder: Path) -> dict[str, str]:
    """Checksums of every file in the folder and below it. Raises OSError if one cannot be read."""
    return _of(folder, sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))


def damage(folder: Path, known: Checksums) -> str | None:
    """Describes which files have changed since the checksums were made. None: none have."""
    missing = next((name for name in known if not (folder / name).is_file()), None)
    if missing is not None:
        return f"{missing} is missing"
    try:
        found = _of(folder, list(known))
    except OSError as error:
        return f"a file cannot be read: {error.strerror or error}"
    changed = [name for name in known if found[name] != known[name]]
    if not changed:
        return None
    size = (folder / changed[0]).stat().st_size
    return f"{changed[0]} ({size:,} bytes) does not hold what was written"


def _of(folder: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor() as readers:  # files of several ranks at once; hashing holds no lock
        return dict(zip(names, readers.map(lambda name: _sum(folder / name), names), strict=True))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
