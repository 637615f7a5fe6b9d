"""Puts folders on the import path, one for each family, with a module that stands in for the original.

Knows: `sys.path`, PYTHONPATH.  Knows not: what scripts do with the names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ludus.compat.names import FAMILIES, HERE


def put_on_path(first: Iterable[str] = ()) -> None:
    """From now on, also in child processes, `import art` finds Ludus's names unless the original is installed.

    first: families for which Ludus's names are found even if the original is installed.
    """
    front, back = [_folder(each) for each in first], [_folder(each) for each in FAMILIES]
    sys.path[:] = [*front, *(each for each in sys.path if each not in {*front, *back}), *back]
    inherited = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in {"", *front, *back}]
    os.environ["PYTHONPATH"] = os.pathsep.join([*front, *inherited, *back])
    importlib.invalidate_caches()


def original(family: str) -> str | None:
    """Location of the original that `import` finds. None: it finds Ludus's names, or nothing."""
    found = sys.modules.get(family)
    spec = importlib.util.find_spec(family) if found is None else found.__spec__
    if spec is None or spec.name.startswith(f"{HERE}.") or Path(__file__).parent in Path(spec.origin or "").parents:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), family)


def _folder(family: str) -> str:
    return str(Path(__file__).parent / family)
