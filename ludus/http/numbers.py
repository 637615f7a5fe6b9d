"""Parses numbers from clients: the one place where text of a header, a query string or a path becomes a number.

Knows: digits.  Knows not: which header.
Invariant: whatever is sent, the result is a number within bounds or an error for its sender.
"""

from __future__ import annotations

import re
from typing import Annotated

import pydantic

from ludus.errors import AgentError

MOST_DIGITS = 15  # of counts, which every database and every float holds exactly
_MOST_SHOWN = 40
Count = Annotated[int, pydantic.Field(ge=0, lt=10**MOST_DIGITS)]
"""The same for parameters of a route. Paths never use `:int`, which would convert before the key is checked."""


_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?")


def read_number(text: str, name: str) -> float:
    """The finite number in `text`. Raises AgentError if it is not one.

    name: what the value is called in the error.
    """
    if not _NUMBER.fullmatch(text):
        message = f"Invalid value for {name!r}: {text[:_MOST_SHOWN]!r}. Allowed: a number such as -0.5 or 1e-3."
        raise AgentError(message, code="invalid_value", param=name)
    return float(text)


def read_count(text: str, name: str) -> int:
    """The count in `text`. Raises AgentError if it is not one, or has more than 15 digits.

    name: what the value is called in the error.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise AgentError(
            f"Invalid value for {name!r}: {text[:_MOST_SHOWN]!r}. Allowed: a number of at most {MOST_DIGITS} digits.",
            code="invalid_value",
            param=name,
        )
    return int(text)
