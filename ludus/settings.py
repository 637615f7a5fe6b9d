"""The machinery of configuration: frozen models, YAML plus dotted overrides, errors that name the nearest key.

Knows: pydantic, YAML.  Knows not: any setting of any component; each keeps its own beside itself.
Invariant: a bad key or value ends in one ConfigError that says where it stands, what was got and what is allowed.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import pydantic
import yaml

from ludus.errors import ConfigError, UserError

Path_ = tuple[str, ...]
SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(pydantic.BaseModel):
    """Base of every settings record: frozen, and closed to keys it does not know."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=False, protected_namespaces=())

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except pydantic.ValidationError as error:
            raise ConfigError(_explain(type(self), error)) from None

    # pydantic calls a custom __init__ for nested models too; this mark keeps their errors in the outer report,
    # where the whole path of a key is known.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def is_set(self, name: str) -> bool:
        """The key was given explicitly, with a value other than its default."""
        if name not in self.model_fields_set:
            return False
        field = type(self).model_fields[name]
        return bool(getattr(self, name) != field.get_default(call_default_factory=True, validated_data={}))


def load_settings(cls: type[SettingsT], yaml_path: Path | None, overrides: Sequence[str] = ()) -> SettingsT:
    """Settings from a YAML file (None: only defaults) with `a.b=value` overrides on top, values read as YAML.

    Raises UserError if the file is missing, ConfigError for an unknown key or a value that cannot be.
    """
    data = read_yaml(yaml_path) if yaml_path is not None else {}
    return cls(**with_overrides(data, overrides))


def with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Nested values with `a.b=value` overrides on top. Raises ConfigError for an override of another form."""
    changed = dict(data)
    for override in overrides:
        path, value = parse_override(override)
        changed = with_value(changed, path, value, whole=".".join(path))
    return changed


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name most like `name`. None: nothing is alike."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return matches[0] if matches else None


def dump_settings(settings: Settings) -> str:
    """The settings as YAML, every key with its resolved value; `load_settings` reads it back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises UserError if it is missing, ConfigError if it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, but holds a {type(data).__name__}")
    return data


def parse_override(override: str) -> tuple[Path_, Any]:
    """Key and value of `a.b=value`, the value read as YAML. Raises ConfigError for anything else."""
    key, sign, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not sign or not all(path):
        raise ConfigError(f"override {override!r} must have the form key=value, such as rollout.retries=2")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from None
    return path, value


def with_value(data: Mapping[str, Any], path: Path_, value: Any, *, whole: str) -> dict[str, Any]:
    """The nested mapping with another value at `path`. whole: what error messages call it."""
    head, rest = path[0], path[1:]
    if not rest:
        return {**data, head: value}
    below = data.get(head)
    if below is not None and not isinstance(below, Mapping):
        raise ConfigError(f"override {whole!r}: {head!r} holds the value {below!r}, which has no keys below it")
    return {**data, head: with_value(below or {}, rest, value, whole=whole)}


def _explain(cls: type[pydantic.BaseModel], error: pydantic.ValidationError) -> str:
    return "\n".join(dict.fromkeys(_explain_one(cls, detail) for detail in error.errors()))


def _explain_one(cls: type[pydantic.BaseModel], detail: Any) -> str:
    path = tuple(str(part) for part in detail["loc"])
    dotted = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return _explain_unknown(cls, path)
    cause = detail.get("ctx", {}).get("error")
    if cause is not None:
        return f"{dotted}: {cause}" if dotted else str(cause)
    return f"{dotted}={detail['input']!r} is not possible: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _explain_unknown(cls: type[pydantic.BaseModel], path: Path_) -> str:
    dotted, parent = ".".join(path), ".".join(path[:-1])
    siblings = [".".join((*path[:-1], name)) for name in _keys_at(cls, path[:-1])]
    everywhere = [".".join(key) for key in _all_keys(cls)]
    same_name = [key for key in everywhere if key.rpartition(".")[2] == path[-1]]
    best = same_name[0] if same_name else nearest(dotted, siblings) or nearest(dotted, everywhere)
    hint = f"; did you mean {best!r}?" if best else "."
    known = ", ".join(key.rpartition(".")[2] for key in siblings)
    return f"unknown key {dotted!r}{hint} Known {f'below {parent!r}' if parent else 'at the top'}: {known}"


def _keys_at(cls: type[pydantic.BaseModel], path: Path_) -> list[str]:
    at: type[pydantic.BaseModel] | None = cls
    for name in path:
        field = at.model_fields.get(name) if at is not None else None
        at = _model_of(field.annotation) if field is not None else None
    return list(at.model_fields) if at is not None else []


def _all_keys(cls: type[pydantic.BaseModel]) -> Iterator[Path_]:
    for name, field in cls.model_fields.items():
        yield (name,)
        below = _model_of(field.annotation)
        if below is not None:
            yield from ((name, *rest) for rest in _all_keys(below))


def _model_of(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The settings model inside `X` or `X | None`. None: the key holds a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        found = [model for model in map(_model_of, get_args(annotation)) if model is not None]
        return found[0] if found else None
    return None
