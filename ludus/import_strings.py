"""Import strings, by which a user names an object of their own: `pkg.mod:Name`, `pkg.mod.Name`, `path/to/file.py:Name`.

Knows: modules and files.  Knows not: what is imported.
Invariant: a file is imported once, and in it the modules beside it are found, as where Python runs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import MissingModuleError, UserError
from ludus.settings import did_you_mean


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
            hint = did_you_mean(name, [known for known in dir(found) if not known.startswith("_")], "")
            raise UserError(f"{module_name!r} has no {name!r}{hint}")
        found = getattr(found, name)
    return found


def import_function(function: Any, name: str) -> Callable[..., Any]:
    """The function, which may be given by its import string. name: of the key or argument, for error messages.

    Raises UserError if there is none.
    """
    found: Callable[..., Any] = import_object(function) if isinstance(function, str) else function
    if not callable(found):
        raise UserError(f"{name} is {found!r:.200} of type {type(found).__name__}; pass a function")
    return found


def _import_module(name: str, reference: str) -> types.ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            at = f"(looked from {Path.cwd()})"
            raise MissingModuleError(f"cannot import {reference!r}: there is no module {error.name!r} {at}") from None
        raise _missing(reference, error) from error


def import_file(path: Path) -> types.ModuleType:
    """The module in a file, imported once. Raises UserError if there is no such file, or none that it imports."""
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
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise _missing(str(path), error) from error
        raise
    return module


def _missing(what: str, error: ModuleNotFoundError) -> UserError:
    return UserError(f"{what} cannot be imported: {error}; Ludus runs in {sys.prefix}, and imports what is there")


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
