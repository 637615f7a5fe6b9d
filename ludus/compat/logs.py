"""The logging of AReaL's and realhf's modules, which is Python's.

Knows: loggers by name.  Knows not: where their lines go; `ludus run` shows warnings.
"""

from __future__ import annotations

import logging


def getLogger(name: str | None = None, type_: str | None = None) -> logging.Logger:  # noqa: ARG001, N802  their names
    """Python's logger of this name. type_: said nothing but colours there."""
    return logging.getLogger(name)
