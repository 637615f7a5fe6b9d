"""The machinery of configuration: frozen models, YAML plus dotted overrides, choices between kinds, errors
that name the nearest key.

Knows: pydantic, YAML and files.  Knows not: any setting of any component; each keeps its own beside itself.
Invariant: a bad key or value ends in one ConfigError that says where it stands, what was got and what is allowed.
"""

from __future__ import annotations

import difflib
import logging
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import pydantic
import yaml
from pydantic_core import core_schema

from ludus.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

Path_ = tuple[str, ...]
SettingsT = TypeVar("SettingsT", bound="Settings")


class _Loader(yaml.SafeLoader):
    """Reads `1e-8` as a number, which YAML 1.1 takes for a text, and `2026-11-01` as a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


_MOST_VALUES = 1_000_000
"""Of a text. A configuration has hundreds, and rows have files of their own; aliases of aliases are soon billions."""
_SCIENTIFIC = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+0123456789."))


class Settings(pydantic.BaseModel):
    """Base of every settings record: frozen, and closed to keys it does not know."""

    has_presets: ClassVar[bool] = False
    """What a key stands for when it is not given depends on another."""
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=False, protected_namespaces=())

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except pydantic.ValidationError as error:
            raise ConfigError(_explain(type(self), error)) from None

    # pydantic calls a custom __init__ for nested models too; this mark keeps their errors in the outer report,
    # where the whole path of a key is known.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def hint_of(cls, unknown: str) -> str:
        """What else an unknown key may mean, as the end of a clause. Empty: nothing is known."""
        return ""

    def is_set(self, key: str) -> bool:
        """The key, which may stand below another as in `a.b`, was given explicitly, with a value other than its
        default."""
        name, _, below = key.partition(".")
        if name not in self.model_fields_set:
            return False
        if below:
            settings = getattr(self, name)
            return isinstance(settings, Settings) and settings.is_set(below)
        field = type(self).model_fields[name]
        return bool(getattr(self, name) != field.get_default(call_default_factory=True, validated_data={}))

    def idle(self) -> Iterable[Idle]:
        """Keys of its own that were given and have no effect with the others."""
        return ()


@dataclass(frozen=True, slots=True)
class Idle:
    """A key that was given and has no effect."""

    key: str
    why: str


class Tagged(Settings):
    """One of several settings that may stand below one key, told apart by the key that `tag` names."""

    tag: ClassVar[str] = "kind"

    @pydantic.model_validator(mode="after")
    def _keep_kind(self) -> Self:
        self.__pydantic_fields_set__.add(self.tag)  # or what is written without defaults would come back as another
        return self


class Choice(Tagged):
    """One of several settings that are told apart by `kind`."""

    kind: str


@dataclass(frozen=True)
class OneOf:
    """Annotation of a key whose value is one of the settings of a table: `Annotated[Choice, OneOf(table, "clip")]`.

    What is given may be such settings, a mapping (without its kind it is the default's), or the bare name of a kind. A
    key that only another kind knows is left out with a warning, so that one word on the command line changes the kind.
    """

    table: Mapping[str, type[Tagged]]
    default: str
    own: str | None = None
    """The kind that a bare import string stands for, as its `path`. None: import strings are not taken."""
    several: str | None = None
    """The kind that a list stands for, as its `of`. None: lists are not taken."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        choices = {kind: handler.generate_schema(cls) for kind, cls in self.table.items()}
        union = core_schema.tagged_union_schema(dict(choices), discriminator=self._kind_of)
        return core_schema.no_info_before_validator_function(self._read, union)

    @property
    def tag(self) -> str:
        return self.table[self.default].tag

    def _kind_of(self, value: Any) -> Any:
        return value[self.tag] if isinstance(value, Mapping) else getattr(value, self.tag)

    def _read(self, given: Any) -> Any:
        kept, idle = self.split(given)
        for name, why in idle.items():
            logger.warning("%s=%r does not act: %s", name, given[name], why)
        return kept

    def split(self, given: Any) -> tuple[Any, dict[str, str]]:
        """What was given as its kind takes it, and why each key that is left out of it does not act.

        Raises ConfigError for what is no settings of the table.
        """
        if isinstance(given, Tagged):
            return given, {}
        tag = self.tag
        if isinstance(given, str):
            given = {tag: self.own, "path": given} if self.own and ":" in given else {tag: given}
        if isinstance(given, list | tuple) and self.several:
            given = {tag: self.several, "of": given}
        if not isinstance(given, Mapping):
            lists = ", or a list of such" if self.several else ""
            raise ConfigError(
                f"must be one of {', '.join(self.table)}, or a mapping with it as `{tag}`{lists}, got {given!r}"
            )
        # An override below a bare name calls it `kind`, whatever the tag is.
        given = {tag if name == "kind" else name: value for name, value in given.items()}
        kind = given.get(tag, self.default)
        if kind not in self.table:
            hint = did_you_mean(str(kind), self.table, ";")
            raise ConfigError(f"{kind!r} is not available{hint} there are {', '.join(self.table)}")
        known, idle = self.table[kind].model_fields, {}
        for name in given:
            others = [other for other, cls in self.table.items() if name in cls.model_fields]
            if name not in known and others:
                idle[name] = f"{tag} is {kind!r}, and it is a key of {' and '.join(map(repr, others))}"
        return {name: value for name, value in given.items() if name not in idle} | {tag: kind}, idle


def without_idle(cls: type[pydantic.BaseModel], data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Idle]]:
    """The values of such settings without the keys of kinds that were not chosen, and those keys.

    Below settings with presets a choice whose kind is not named is left as it is: the preset decides.
    """
    kept, idle = dict(data), list[Idle]()
    for name, value in data.items():
        field = cls.model_fields.get(name)
        choice = None if field is None else _choice_of(field)
        below = None if field is None else _model_of(field.annotation)
        is_preset = issubclass(cls, Settings) and cls.has_presets
        default = None if choice is None or is_preset else choice.default
        if choice is not None and isinstance(value, Mapping) and value.get(choice.tag, default) in choice.table:
            kept[name], found = choice.split(value)
            idle += [Idle(f"{name}.{key}", why) for key, why in found.items()]
            below = choice.table[kept[name][choice.tag]]
        if below is not None and isinstance(value, Mapping):
            kept[name], more = without_idle(below, kept[name])
            idle += [Idle(f"{name}.{each.key}", each.why) for each in more]
    return kept, idle


def idle_keys(settings: Settings) -> list[Idle]:
    """The keys that have no effect, of these settings and of those below them."""
    idle = list(settings.idle())
    for name in type(settings).model_fields:
        below = getattr(settings, name)
        if isinstance(below, Settings):
            idle += [Idle(f"{name}.{each.key}", each.why) for each in idle_keys(below)]
    return idle


def acting(settings: SettingsT, idle: Sequence[Idle]) -> SettingsT:
    """The settings as if these keys had not been given; one warning names them all."""
    if not idle:
        return settings
    reasons = dict.fromkeys(each.why for each in idle)
    named = (f"{', '.join(each.key for each in idle if each.why == why)} ({why})" for why in reasons)
    logger.warning("these keys do not act: %s", "; ".join(named))
    values = settings.model_dump(exclude_unset=True)
    for each in idle:
        *path, name = each.key.split(".")
        below = values
        for part in path:
            below = below.get(part, {})
        below.pop(name, None)
    return type(settings)(**values)


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


def did_you_mean(name: str, allowed: Iterable[str], otherwise: str = ".") -> str:
    """The end of an error's first clause: the nearest allowed name, or `otherwise` where nothing is alike."""
    best = nearest(name, allowed)
    return f"; did you mean {best!r}?" if best else otherwise


def dump_settings(settings: Settings) -> str:
    """The settings as YAML, every key with its resolved value; read as YAML they are the same settings."""
    return yaml.dump(settings.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def load_yaml(path: Path, what: str) -> Any:
    """The value in a file. what: what error messages call it. Raises UserError if it is missing, ConfigError if it is
    no YAML."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {str(path)!r}: {error} (looked from {Path.cwd()})") from None
    return _parsed(text, str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises UserError if it is missing, ConfigError if it holds none."""
    data = load_yaml(path, "the configuration")
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
    return path, _parsed(text, f"override {override!r}: the value")


def _parsed(text: str, where: str) -> Any:
    """The value of a text. where: what error messages call it. Raises ConfigError for what is no YAML, or too much."""
    try:
        value = yaml.load(text, Loader=_Loader)
        num_values = _num_values(value, {})
    except RecursionError:
        raise ConfigError(f"{where} is not valid YAML: it is nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a number of more digits than Python reads is the other
        raise ConfigError(f"{where} is not valid YAML: {error}") from None
    if num_values > _MOST_VALUES:
        raise ConfigError(f"{where} would have {num_values:,} values with its aliases written out; leave aliases out")
    return value


def _num_values(value: Any, known: dict[int, int | None]) -> int:
    """With aliases written out. known: by identity; None while it is counted. Raises ValueError if it is endless."""
    if not isinstance(value, Mapping | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = None
        inside = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_num_values(each, known) for each in inside)
    count = known[id(value)]
    if count is None:
        raise ValueError("an alias stands in what it names")
    return count


def with_value(data: Mapping[str, Any], path: Path_, value: Any, *, whole: str) -> dict[str, Any]:
    """The nested mapping with another value at `path`. whole: what error messages call it."""
    head, rest = path[0], path[1:]
    if not rest:
        return {**data, head: value}
    below = data.get(head)
    if isinstance(below, str):  # the bare kind of a choice; any other text is refused where it is read
        below = {"kind": below}
    if below is not None and not isinstance(below, Mapping):
        raise ConfigError(f"override {whole!r}: {head!r} holds the value {below!r}, which has no keys below it")
    return {**data, head: with_value(below or {}, rest, value, whole=whole)}


def leaves(data: Mapping[str, Any], above: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Path and value of every key that has none below it; a list is a value, and so is an empty mapping."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of both nested mappings; where both have one, `above` comes first, key by key."""
    both = {key for key in above if isinstance(above[key], Mapping) and isinstance(below.get(key), Mapping)}
    return {**below, **above, **{key: merged(below[key], above[key]) for key in both}}


def _explain(cls: type[pydantic.BaseModel], error: pydantic.ValidationError) -> str:
    return "\n".join(dict.fromkeys(_explain_one(cls, detail) for detail in error.errors()))


def _explain_one(cls: type[pydantic.BaseModel], detail: Any) -> str:
    path = _without_kinds(cls, detail["loc"])
    dotted = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return _explain_unknown(cls, path, detail["input"])
    if detail["type"] == "missing":
        return f"{dotted} must be given"
    cause = detail.get("ctx", {}).get("error")
    if cause is not None:
        return f"{dotted}: {cause}" if dotted else str(cause)
    return f"{dotted}={detail['input']!r} is not possible: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _explain_unknown(cls: type[pydantic.BaseModel], path: Path_, value: Any) -> str:
    dotted, parent = ".".join(path), ".".join(path[:-1])
    siblings = [".".join((*path[:-1], name)) for name in _keys_at(cls, path[:-1])]
    everywhere = [".".join(key) for key in settings_keys(cls)]
    same_name = [key for key in everywhere if key.rpartition(".")[2] == path[-1]]
    best = same_name[0] if same_name else nearest(dotted, siblings) or nearest(dotted, everywhere)
    whole = ".".join(map(str, next(leaves({dotted: value}))[0]))  # a section that is not there, with a key below it
    others = "" if (same_name and not parent) or not issubclass(cls, Settings) else cls.hint_of(whole)
    hint = others or (f"; did you mean {best!r}?" if best else ".")
    known = ", ".join(key.rpartition(".")[2] for key in siblings)
    return f"unknown key {dotted!r}{hint} Known {f'below {parent!r}' if parent else 'at the top'}: {known}"


def settings_keys(cls: type[pydantic.BaseModel]) -> list[Path_]:
    """Every key there is, as its path; below a choice those of all its kinds."""
    return list(dict.fromkeys(_all_keys(cls)))


def _all_keys(cls: type[pydantic.BaseModel]) -> Iterator[Path_]:
    for name, field in cls.model_fields.items():
        yield (name,)
        for below in _models_of(field):
            yield from ((name, *rest) for rest in _all_keys(below))


def _keys_at(cls: type[pydantic.BaseModel], path: Path_) -> list[str]:
    at, named = [cls], list[type[pydantic.BaseModel]]()
    for name in path:
        fields = [each.model_fields[name] for each in at if name in each.model_fields]
        at = named or [below for field in fields for below in _models_of(field)]
        named = [model for field in fields if (model := _model_of_values(field.annotation)) is not None]
    return list(dict.fromkeys(name for each in at for name in each.model_fields))


def _without_kinds(cls: type[pydantic.BaseModel], loc: Sequence[Any]) -> Path_:
    """The path of a key: pydantic names the kind of a choice too, as if it were one."""
    path: list[str] = []
    at, kinds = [cls], frozenset[str]()
    for part in map(str, loc):
        if part in kinds:
            kinds = frozenset()
            continue
        path.append(part)
        fields = [each.model_fields[part] for each in at if part in each.model_fields]
        at = [below for field in fields for below in _models_of(field)]
        kinds = frozenset(kind for field in fields for kind in _table_of(field))
    return tuple(path)


def _models_of(field: Any) -> list[type[pydantic.BaseModel]]:
    """The settings models that may stand below a key. None of them: it holds a plain value."""
    model = _model_of(field.annotation)
    return list(_table_of(field).values()) or ([] if model is None else [model])


def _table_of(field: Any) -> Mapping[str, type[Tagged]]:
    choice = _choice_of(field)
    return {} if choice is None else choice.table


def _choice_of(field: Any) -> OneOf | None:
    return next((each for each in field.metadata if isinstance(each, OneOf)), None)


def _model_of(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The settings model inside `X` or `X | None`. None: the key holds a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        found = [model for model in map(_model_of, get_args(annotation)) if model is not None]
        return found[0] if found else None
    return None


def _model_of_values(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The settings model of the values of a mapping by name. None: the key holds no such mapping."""
    return _model_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None
