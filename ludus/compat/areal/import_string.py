"""Imports objects by import strings, as AReaL's scripts do.

Knows: import strings.  Knows not: what they name.
"""

from __future__ import annotations

from typing import Any

from ludus.compat.names import here
from ludus.import_strings import import_object


def import_from_string(module_path: str) -> Any:
    """The object of 'pkg.mod.Name'; for AReaL's own names, Ludus's counterpart.

    Raises UserError, which says which part could not be found.
    """
    return import_object(here(module_path))
