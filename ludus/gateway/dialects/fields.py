"""Typed readers of JSON fields, which raise an AgentError that names the field; and tables that class the fields.

Knows: JSON values, OpenAI's error codes, the classes honoured, ignored, refused.  Knows not: any protocol's fields.
Invariant: null and absent are the same; a reader returns its default for both.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import AgentError
from ludus.settings import nearest

_NUMBER = re.compile(r"\[\d+\]")
Refused = Mapping[str, tuple[object, str]]
"""By field name: the one value besides null that is harmless and therefore accepted, and what to use instead."""


def names(text: str) -> frozenset[str]:
    """The space-separated names in `text`."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of one kind of JSON object, each of them honoured, ignored or refused."""

    honoured: frozenset[str]
    ignored: frozenset[str]
    """Accepted because they cannot change a token; the answer's headers list them."""
    refused: Refused
    """Refused because they would change tokens."""

    @classmethod
    def of(
        cls,
        honoured: str,
        ignored: str = "",
        refused: Mapping[str, tuple[object, str]] = {},
        *,
        also: Iterable[str] = (),
    ) -> FieldTable:
        """A table from space-separated names. also: further honoured fields."""
        return cls(names(honoured).union(also), names(ignored), refused)

    @property
    def known(self) -> frozenset[str]:
        return self.honoured | self.ignored | frozenset(self.refused)

    def check(self, body: Mapping[str, Any], *, at: str = "") -> tuple[str, ...]:
        """The ignored fields in `body`, as paths without indices. Raises AgentError for refused or unknown fields.

        at: path of `body`, such as `messages[2]`.
        """
        if self.honoured.issuperset(body):
            return ()
        refuse_unknown(body, self.known, at=at)
        for name, (harmless, instead) in self.refused.items():
            value = body.get(name)
            if value is not None and value != harmless:
                raise unsupported(join(at, name), instead)
        path = _NUMBER.sub("", at)
        return tuple(join(path, name) for name in sorted(self.ignored) if body.get(name) is not None)


def refuse_unknown(body: Mapping[str, Any], known: Collection[str], *, at: str = "") -> None:
    """Raises AgentError for the first key that is not in `known`. `at` is the path of `body`, such as `messages[2]`."""
    for name in body:
        if name not in known:
            like = nearest(name, known)
            hint = f" Did you mean {join(at, like)!r}?" if like else f" Known: {', '.join(sorted(known))}."
            raise AgentError(
                f"Unrecognized request argument supplied: {join(at, name)}.{hint}",
                code="unknown_parameter",
                param=join(at, name),
            )


def join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def wrong_type(value: object, expected: str, param: str) -> AgentError:
    return AgentError(
        f"Invalid type for '{param}': expected {expected}, but got {json_kind(value)} instead.",
        code="invalid_type",
        param=param,
    )


def wrong_value(value: object, allowed: str, param: str) -> AgentError:
    return AgentError(f"Invalid value for '{param}': {value!r}. Allowed: {allowed}.", code="invalid_value", param=param)


def unsupported(param: str, why: str) -> AgentError:
    return AgentError(f"Unsupported parameter: '{param}'. {why}", code="unsupported_parameter", param=param)


def no_text(kind: str, allowed: Iterable[str], at: str) -> AgentError:
    """The error for a content part, at path `at`, that is an image, a file or anything else but text."""
    return AgentError(
        f"Invalid value for '{at}.type': {kind!r}. Allowed: {', '.join(map(repr, allowed))}; the model reads text.",
        code="unsupported_content",
        param=at,
    )


def missing(param: str) -> AgentError:
    return AgentError(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def json_kind(value: object) -> str:
    """JSON's name for the type of this value."""
    kinds = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else kinds.get(type(value), "an object")


def _read(body: Mapping[str, Any], name: str, kind: Any, expected: str, at: str) -> Any:
    """The value of type `kind` under `name`, or None if the field is absent."""
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise wrong_type(value, expected, join(at, name))
    return value


def read_number(
    body: Mapping[str, Any], name: str, default: float, *, low: float = -math.inf, high: float = math.inf, at: str = ""
) -> float:
    """A finite number in [low, high]."""
    value = _read(body, name, int | float, "a number", at)
    if value is None:
        return default
    if not max(low, -sys.float_info.max) <= value <= min(high, sys.float_info.max):
        raise wrong_value(value, _interval(low, high), join(at, name))
    return float(value)


def read_integer(
    body: Mapping[str, Any], name: str, default: int, *, low: float = -math.inf, high: float = math.inf, at: str = ""
) -> int:
    """An integer in [low, high]."""
    value: int | None = _read(body, name, int, "an integer", at)
    if value is None:
        return default
    if not low <= value <= high:
        raise wrong_value(value, _interval(low, high), join(at, name))
    return value


def read_boolean(body: Mapping[str, Any], name: str, default: bool, *, at: str = "") -> bool:
    value: bool | None = _read(body, name, bool, "a boolean", at)
    return default if value is None else value


def read_text(body: Mapping[str, Any], name: str, *, at: str = "") -> str | None:
    """The string under `name`, or None if the field is absent."""
    value: str | None = _read(body, name, str, "a string", at)
    return value


def require_text(body: Mapping[str, Any], name: str, *, at: str = "") -> str:
    value = read_text(body, name, at=at)
    if value is None:
        raise missing(join(at, name))
    return value


def read_object(body: Mapping[str, Any], name: str, *, at: str = "") -> dict[str, Any]:
    """The object under `name`, empty if there is none."""
    value = body.get(name)
    return {} if value is None else as_object(value, join(at, name))


def as_object(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(value, "an object", param)
    return value


def read_array(body: Mapping[str, Any], name: str, *, at: str = "") -> list[Any]:
    """The array under `name`, empty if there is none."""
    value: list[Any] | None = _read(body, name, list, "an array", at)
    return [] if value is None else value


def read_choice(body: Mapping[str, Any], name: str, allowed: Collection[str], *, at: str = "") -> str | None:
    """The string under `name`, one of `allowed`, or None if the field is absent."""
    value = read_text(body, name, at=at)
    if value is not None and value not in allowed:
        raise wrong_value(value, ", ".join(map(repr, allowed)), join(at, name))
    return value


def read_kind(
    body: Mapping[str, Any],
    tables: Mapping[str, FieldTable],
    ignored: dict[str, None],
    *,
    at: str,
    name: str = "type",
) -> str:
    """The string under `name`, which selects the table to check the object by; ignored fields go to `ignored`."""
    kind = require_text(body, name, at=at)
    if kind not in tables:
        raise wrong_value(kind, ", ".join(map(repr, tables)), join(at, name))
    ignored.update(dict.fromkeys(tables[kind].check(body, at=at)))
    return kind


def numbered(at: str, entries: Sequence[Any], start: int = 0) -> Iterator[tuple[str, Any]]:
    """Every entry from index `start` on, with its path."""
    return ((f"{at}[{i}]", entry) for i, entry in enumerate(entries[start:], start))


def read_objects(body: Mapping[str, Any], name: str, *, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the array under `name`, each with its path."""
    return ((path, as_object(entry, path)) for path, entry in numbered(join(at, name), read_array(body, name, at=at)))


def _interval(low: float, high: float) -> str:
    if high == math.inf:
        return f"at least {low:g}" if low > -math.inf else "any finite number"
    return f"{low:g} to {high:g}"
