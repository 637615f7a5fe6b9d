"""A folder for each family, with a module of the original's name: on the path it stands in for the original.

Knows: `sys.path`, which processes inherit.  Knows not: what scripts do with the names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ludus.compat.names import FAMILIES, HERE


def put_on_path(first: Iterable[str] = ()) -> None:
    """From now on `import art` finds ours where the original is not installed, in processes started from here too.

    first: families of which ours are found where the original is installed too.
    """
    front, back = [_folder(each) for each in first], [_folder(each) for each in FAMILIES]
    sys.path[:] = [*front, *(each for each in sys.path if each not in {*front, *back}), *back]
    inherited = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in {"", *front, *back}]
    os.environ["PYTHONPATH"] = os.pathsep.join([*front, *inherited, *back])
    importlib.invalidate_caches()


def original(family: str) -> str | None:
    """Where the original lies that `import` finds. None: it finds ours, or nothing."""
    found = sys.modules.get(family)
    spec = importlib.util.find_spec(family) if found is None else found.__spec__
    if spec is None or spec.name.startswith(f"{HERE}.") or Path(__file__).parent in Path(spec.origin or "").parents:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), family)


def _folder(family: str) -> str:
    return str(Path(__file__).parent / family)
