"""Typed readers of JSON fields: a value of the right kind, or an AgentError that names the field.

Knows: JSON values, OpenAI's error codes.  Knows not: which fields a protocol has.
Invariant: null and absent are the same; a reader returns its default for both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ludus.errors import AgentError
from ludus.settings import nearest


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


def missing(param: str) -> AgentError:
    return AgentError(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def json_kind(value: object) -> str:
    """What JSON calls a value of this type."""
    kinds = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else kinds.get(type(value), "an object")


def read_number(
    body: Mapping[str, Any], name: str, default: float, *, low: float = -math.inf, high: float = math.inf
) -> float:
    """A finite number in [low, high]."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, "a number", name)
    if not low <= value <= high or not math.isfinite(value):
        raise wrong_value(value, _interval(low, high), name)
    return float(value)


def read_integer(
    body: Mapping[str, Any], name: str, default: int, *, low: float = -math.inf, high: float = math.inf
) -> int:
    """An integer in [low, high]."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, "an integer", name)
    if not low <= value <= high:
        raise wrong_value(value, _interval(low, high), name)
    return value


def read_boolean(body: Mapping[str, Any], name: str, default: bool, *, at: str = "") -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean", join(at, name))
    return value


def read_text(body: Mapping[str, Any], name: str, *, at: str = "") -> str | None:
    """The string under `name`. None: there is none."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(value, "a string", join(at, name))
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
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(value, "an array", join(at, name))
    return value


def _interval(low: float, high: float) -> str:
    if high == math.inf:
        return f"at least {low:g}" if low > -math.inf else "any finite number"
    return f"{low:g} to {high:g}"
