"""Assertions of cases, with messages that show what was expected and what was received.

Knows: values.  Knows not: protocols, servers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_CHARS = 300  # of a value in a report: enough to see what is wrong


class ExpectationError(Exception):
    """An assertion of a case failed: what was checked, what was expected, what was received."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        super().__init__(f"{what}: expected {expected}, got {shown(got)}")
        self.what = what
        self.expected = expected
        self.got = shown(got)


@dataclass(frozen=True, slots=True)
class Some:
    """Equal to every value for which `holds` is true; `words` describes them."""

    words: str
    holds: Callable[[Any], object]


TEXT = Some("a string that is not empty", lambda got: isinstance(got, str) and got)
FULL = Some("at least one", lambda got: got)
EMPTY = Some("none", lambda got: not got)
LOGPROBS = Some("finite, none above 0", lambda got: all(math.isfinite(value) and value <= 0 for value in got))


def over(least: int) -> Some:
    return Some(f"more than {least}", lambda got: got is not None and got > least)


def at_most(most: int) -> Some:
    return Some(f"at most {most}", lambda got: got <= most)


def one_of(*allowed: object) -> Some:
    return Some(f"one of {', '.join(map(shown, allowed))}", lambda got: got in allowed)


def containing(part: str) -> Some:
    return Some(f"{shown(part)} in it", lambda got: part in (got or ""))


def without(*strings: str) -> Some:
    return Some(f"none of {shown(strings)} in it", lambda got: not any(string in str(got) for string in strings))


def beginning(start: str) -> Some:
    return Some(f"beginning with {shown(start)}", lambda got: got.startswith(start))


def ending(end: str) -> Some:
    return Some(f"ending with {shown(end)}", lambda got: got.endswith(end))


def equal(what: str, got: object, expected: object) -> None:
    """Raises ExpectationError unless `got` equals `expected`, which may be a `Some`."""
    if isinstance(expected, Some):
        that(what, expected.holds(got), expected.words, got)
    elif got != expected or type(got) is bool is not type(expected):
        raise ExpectationError(what, shown(expected), got)


def parts(got: Any, **expected: object) -> None:
    """Check attributes, or keys, of `got` as `equal` does."""
    for name, value in expected.items():
        equal(name, got.get(name) if isinstance(got, Mapping) else getattr(got, name), value)


def that(what: str, holds: object, expected: str, got: object) -> None:
    """Raises ExpectationError unless `holds`. expected: description of the condition on `got`."""
    if not holds:
        raise ExpectationError(what, expected, got)


def json_object(what: str, got: str | None) -> dict[str, Any]:
    """The object in `got`, which must be the JSON text of an object."""
    try:
        value = json.loads(got or "")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ExpectationError(what, "the text of a JSON object", got)
    return value


def shown(value: object) -> str:
    """`value` on one line, shortened."""
    line = repr(value)
    return line if len(line) <= _MOST_CHARS else f"{line[:_MOST_CHARS]}… ({len(line)} characters)"
