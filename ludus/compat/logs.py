"""The logging of AReaL's and realhf's modules, which is Python's.

Knows: loggers by name.  Knows not: where their lines go; `ludus run` shows warnings.
"""

from __future__ import annotations

import logging


def getLogger(  # noqa: N802  their name
    name: str | None = None,
    type_: str | None = None,  # noqa: ARG001
    level: int | None = None,
) -> logging.Logger:
    """Python's logger of this name. type_: only sets colours in the original.  level: None: unchanged."""
    logger = logging.getLogger(name)
    if level is not None:
        logger.setLevel(level)
    return logger
