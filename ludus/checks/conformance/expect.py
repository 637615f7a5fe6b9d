"""What a case expects, and the words for what it got instead.

Knows: values.  Knows not: protocols, servers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

_MOST_CHARS = 300  # of a value in a report: enough to see what is wrong with a chunk


class ExpectationError(Exception):
    """A case does not hold: what was looked at, what was expected, what was there."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        super().__init__(f"{what}: expected {expected}, got {shown(got)}")
        self.what = what
        self.expected = expected
        self.got = shown(got)


def equal(what: str, got: object, expected: object) -> None:
    if got != expected or type(got) is bool is not type(expected):
        raise ExpectationError(what, shown(expected), got)


def that(what: str, holds: object, expected: str, got: object) -> None:
    """`expected` says in words what `holds` tests of `got`."""
    if not holds:
        raise ExpectationError(what, expected, got)


def one_of(what: str, got: object, allowed: Collection[object]) -> None:
    if got not in allowed:
        raise ExpectationError(what, f"one of {', '.join(map(shown, allowed))}", got)


def text(what: str, got: object) -> str:
    """`got`, which must be a string with something in it."""
    if not isinstance(got, str) or not got:
        raise ExpectationError(what, "a string that is not empty", got)
    return got


def contains(what: str, got: str | None, part: str) -> None:
    if part not in (got or ""):
        raise ExpectationError(what, f"{shown(part)} in it", got)


def json_object(what: str, got: str | None) -> dict[str, Any]:
    """The object in `got`, which must be the text of one."""
    try:
        value = json.loads(got or "")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ExpectationError(what, "the text of a JSON object", got)
    return value


def rising(what: str, got: Sequence[int]) -> None:
    """`got` counts up by one from 0."""
    if list(got) != list(range(len(got))):
        raise ExpectationError(what, "0, 1, … without a gap", list(got))


def shown(value: object) -> str:
    """`value` in a line."""
    line = repr(value)
    return line if len(line) <= _MOST_CHARS else f"{line[:_MOST_CHARS]}… ({len(line)} characters)"
