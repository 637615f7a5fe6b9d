"""Import strings: what 'pkg.mod:Name', 'pkg.mod.Name' and 'path/to/file.py:Name' stand for.

Knows: modules and files.  Knows not: what is done with the object.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import UserError
from ludus.settings import nearest

_FAMILIES = ("areal", "art", "realhf", "verl")
"""Packages whose users' names stand below `ludus`."""


def import_object(reference: str) -> Any:
    """The object an import string names. Raises UserError that says which part of it could not be found."""
    module_name, colon, attribute = reference.partition(":")
    if not colon:
        module_name, _, attribute = reference.rpartition(".")
    if not module_name or not attribute:
        raise UserError(f"{reference!r} is no import string; allowed: 'pkg.mod:Name', 'path/to/file.py:Name'")
    module = import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name, reference)
    found: Any = module
    for name in attribute.split("."):
        if name not in dir(found):
            best = nearest(name, [known for known in dir(found) if not known.startswith("_")])
            raise UserError(f"{module_name!r} has no {name!r}" + (f"; did you mean {best!r}?" if best else ""))
        found = getattr(found, name)
    return found


def _import_module(name: str, reference: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            where = f"(looked from {Path.cwd()})"
            hint = f"; its names are in 'ludus.{name}' here" if name.partition(".")[0] in _FAMILIES else ""
            raise UserError(f"cannot import {reference!r}: there is no module {error.name!r} {where}{hint}") from None
        raise


def import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r} (looked from {Path.cwd()})")
    path = path.resolve()
    _make_importable(path.parent)  # as `python path/to/file.py` would, for the modules beside it
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    name = path.stem if loaded is None and path.stem.isidentifier() else f"ludus_agent_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
