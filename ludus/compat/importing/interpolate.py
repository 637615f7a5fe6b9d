"""Reads YAML with OmegaConf's syntax: `${a.b}` is the value of another key, `???` a value that must be given.

Knows: references, the environment.  Knows not: what any key means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus import settings
from ludus.errors import ConfigError
from ludus.settings import merged, with_overrides

MISSING = "???"
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = "oc.env:"


def read_yaml(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping in the file with `a.b=value` overrides on top, references resolved.

    `${oc.env:NAME}` and `${oc.env:NAME,default}` are variables of the environment. A reference to anything else, or to
    a variable that is not set, is left unchanged.
    Raises UserError if the file cannot be read, ConfigError if it holds no mapping or circular references.
    """
    data = with_overrides(settings.read_yaml(path), [override.strip().lstrip("+") for override in overrides])
    return resolved(data)


def resolved(data: Mapping[str, Any], defaults: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The mapping with its references resolved. Raises ConfigError for circular references.

    defaults: values of keys that references may name and `data` does not have.
    """
    whole = _resolved(dict(data), merged(defaults, data), ())
    assert isinstance(whole, dict), "a mapping stays one"
    return whole


def leaves(data: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key; lists are values, and empty mappings are skipped."""
    return {".".join(map(str, path)): value for path, value in settings.leaves(data) if value != {}}


def _resolved(value: Any, root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _resolved(inner, root, seen) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, root, seen) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return _target(whole, root, seen)
    return _REFERENCE.sub(lambda found: str(_target(found, root, seen)), value)


def _target(found: re.Match[str], root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    name = found.group(1).strip()
    if name in seen:
        raise ConfigError(f"the references {' → '.join((*seen, name))} go round in a circle")
    if name.startswith(_ENVIRONMENT):
        variable, has_default, default = name.removeprefix(_ENVIRONMENT).partition(",")
        value = os.environ.get(variable.strip(), default.strip() if has_default else None)
        return found.group(0) if value is None else value
    at: Any = root
    for part in name.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return found.group(0)
        at = at[part]
    return _resolved(at, root, (*seen, name))
