"""Finds unused names for runs."""

from __future__ import annotations

import itertools
from pathlib import Path


def free_name(root: Path, name: str) -> str:
    """`name`, or the first of NAME-2, NAME-3 … that no run below `root` has."""
    others = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain((name,), others) if not (root / one).exists())
