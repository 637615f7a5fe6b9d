"""Objects by their import strings, as AReaL's scripts name them.

Knows: import strings.  Knows not: what they name.
"""

from __future__ import annotations

from typing import Any

from ludus.compat.names import here
from ludus.settings import import_object


def import_from_string(module_path: str) -> Any:
    """The object of 'pkg.mod.Name'; one of AReaL's own is the one that is here.

    Raises UserError that says which part of it could not be found.
    """
    return import_object(here(module_path))
