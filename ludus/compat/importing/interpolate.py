"""YAML as OmegaConf writes it: `${a.b}` stands for the value of another key, `???` for one that must be given.

Knows: YAML, references.  Knows not: what any key means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ludus.errors import ConfigError, UserError

MISSING = "???"
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


class _Loader(yaml.SafeLoader):
    """Reads `1e-8` as a number, as OmegaConf does and YAML 1.1 does not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$"),
    list("-+0123456789."),
)


def read_yaml(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping in the file with `a.b=value` overrides on top, references resolved.

    A reference to something that is not a key, such as `${oc.env:HOME}`, stays as it is written.
    Raises UserError if the file cannot be read, ConfigError if it holds no mapping or a circle of references.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {str(path)!r}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, but holds a {type(data).__name__}")
    for override in overrides:
        _override(data, override)
    resolved = _resolved(data, data, ())
    assert isinstance(resolved, dict), "a mapping stays one"
    return resolved


def leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; a list is a value."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= leaves(value, f"{dotted}.")
        else:
            found[dotted] = value
    return found


def _override(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    path = key.strip().lstrip("+").split(".")
    if not sign or not all(path):
        raise ConfigError(f"override {override!r} must have the form key=value, such as actor.path=Qwen/Qwen3-0.6B")
    try:
        value = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from None
    for name in path[:-1]:
        below = data.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"override {override!r}: {name!r} holds the value {below!r}, which has no keys below it")
        data = below
    data[path[-1]] = value


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
    at: Any = root
    for part in name.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return found.group(0)
        at = at[part]
    return _resolved(at, root, (*seen, name))
