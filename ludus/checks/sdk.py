"""The SDKs that the checks talk with: an extra of the package, imported when a check needs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from ludus.errors import UserError


def sdk(name: str) -> ModuleType:
    """The package. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"this check needs the SDK {name!r}; run `pip install 'ludus[recipes]'`") from error
