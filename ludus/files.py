"""What is on disk for certain.

Knows: files, folders.  Knows not: what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return once a file, or a folder's list of files, would survive that the machine goes down."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
