"""AReaL's configuration classes, which users extend as dataclasses, and their conversion to a configuration of Ludus.

Knows: AReaL's fields and their defaults (fields.toml), which of them were given.  Knows not: how keys are translated.
Invariants: a key belongs to AReaL, the user's class, or Ludus, looked up in this order; any other is an error. Fields
that were not given and have AReaL's default do not affect the run.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import logging
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from ludus.api.experiment import validated
from ludus.compat import overrides
from ludus.compat.areal.generation import GenerationHyperparameters
from ludus.compat.areal.importer import Imported, import_areal
from ludus.compat.config import Config
from ludus.compat.importing.report import Entry, by_note
from ludus.compat.members import with_members
from ludus.settings import leaves, merged, parse_override, with_value

logger = logging.getLogger(__name__)

_FIELD = re.compile(r"(\w+)(?::(\w+))?(?:=('[^']*'|\S+))?")
"""A field of the table: its name, its section, its default."""


class Section:
    """A section of AReaL's configuration, which records the fields that were given."""

    _given: frozenset[str]
    _ours: Mapping[str, Any] = {}
    """Only on the whole configuration: keys of Ludus that were given with it, nested."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # all of them are
        self.__dict__["_given"] = frozenset({*names[: len(values)], *named})
        return self


class Generation(Section, GenerationHyperparameters):
    """The run's sampling parameters, with AReaL's defaults."""

    def new(self, **kwargs: Any) -> Self:
        """A copy with these fields replaced; which other fields were given is unchanged."""
        changed = replace(self, **kwargs)
        changed.__dict__["_given"] = self._given.union(kwargs)
        return changed


SectionT = TypeVar("SectionT", bound=Section)


def _classes() -> dict[str, type[Section]]:
    table = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
    made: dict[str, type[Section]] = {}
    for title, fields in table.items():
        name, _, base = title.partition(" ")
        # Agents get the run's object itself, so it has the methods of GenerationHyperparameters.
        is_generation = name == GenerationHyperparameters.__name__
        parent: type[Section] = Generation if is_generation else made[base] if base else Section
        cls = dataclasses.make_dataclass(
            name,
            [_field(found, made) for found in _FIELD.finditer(fields)],
            bases=(parent,),
            namespace={"__doc__": "As AReaL has it.", "__module__": __name__},
            kw_only=is_generation,
        )
        made[name] = with_members("areal", f"api.cli_args.{name}")(cls)
    return made


def _field(found: re.Match[str], made: Mapping[str, type[Section]]) -> tuple[str, Any, Any]:
    name, section, default = found.groups()
    if section is not None:
        how = {"default_factory": made[section]} if default is None else {"default": None}
        return name, made[section] | None, dataclasses.field(**how)
    value = ast.literal_eval(default)
    if isinstance(value, list | dict):
        return name, Any, dataclasses.field(default_factory=partial(type(value), value))
    return name, float | None if isinstance(value, float) else Any, dataclasses.field(default=value)


_CLASSES = _classes()


def __getattr__(name: str) -> type[Section]:
    if name in _CLASSES:
        return _CLASSES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def read_experiment(cls: type[SectionT], data: Mapping[str, Any]) -> SectionT:
    """An object of the user's class, made from a configuration's values.

    Raises ConfigError for a key of neither AReaL, the class nor Ludus, or an invalid value.
    """
    ours: dict[str, Any] = {}
    experiment = _read(cls, data, (), ours)
    experiment.__dict__["_ours"] = ours
    config_of(experiment)  # raises for invalid values now, rather than after the data was loaded
    return experiment


def _read(cls: type[SectionT], data: Mapping[str, Any], above: tuple[str, ...], ours: dict[str, Any]) -> SectionT:
    hints, known = get_type_hints(cls), {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, value in data.items():
        path = (*above, str(name))
        if name not in known:
            ours |= with_value(ours, path, value, whole=".".join(path))
            continue
        section = next((kind for kind in _alternatives(hints[name]) if issubclass(kind, Section)), None)
        is_section = section is not None and isinstance(value, Mapping)
        given[name] = (
            _read(section, value, path, ours) if is_section and section else validated(name, hints[name], value)
        )
    return cls(**given)


def _alternatives(hint: Any) -> Iterator[type]:
    """The classes that a hint allows."""
    yield from (each for each in getattr(hint, "__args__", (hint,)) if inspect.isclass(each))


def config_of(
    experiment: Section,
    rows_given: Collection[str] = ("train_dataset", "valid_dataset"),
    num_rows: int | None = None,
) -> Config:
    """The run's configuration.

    rows_given: datasets that are passed in Python, whose keys in the configuration are ignored.  num_rows: to train on.
    None: not known.
    Raises ConfigError for an invalid value.
    """
    return Config.of(merged(_imported(experiment, rows_given, num_rows).config, experiment._ours))


def tell(experiment: Section, rows_given: Collection[str], num_rows: int | None = None) -> None:
    """Log, once, the keys that are changed, left out or not needed."""
    entries = _imported(experiment, rows_given, num_rows).entries
    said = [_told(fate, [entry for entry in entries if entry.fate == fate]) for fate in ("left out", "changed")]
    said.append(_unneeded(entries))
    if any(said):
        logger.warning("keys of areal, see docs/coming-from-areal.md:\n%s", "\n".join(filter(None, said)))


def _imported(experiment: Section, rows_given: Collection[str], num_rows: int | None) -> Imported:
    beside = [".".join(path) for path, _ in leaves(experiment._ours)]
    beside += [".".join(parse_override(each)[0]) for each in overrides.settings()]
    return import_areal(_of_the_run(_stated(experiment), rows_given), beside, num_rows)


def _told(fate: str, entries: Sequence[Entry]) -> str:
    return "\n".join(f"  {fate}: {', '.join(names)} ({note})" for note, names in by_note(entries).items())


def _unneeded(entries: Sequence[Entry]) -> str:
    """Names of keys that are not needed, or `section.*` if all keys of a section are not."""
    fates: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        fates[entry.name.partition(".")[0]].add(entry.fate)
    names = [entry.name for entry in entries if entry.fate == "not needed"]
    sections = {name: name.partition(".")[0] for name in names}
    shown = [f"{of}.*" if "." in name and len(fates[of]) == 1 else name for name, of in sections.items()]
    return f"  not needed: {', '.join(dict.fromkeys(shown))}" if shown else ""


def _of_the_run(data: Mapping[str, Any], rows_given: Collection[str]) -> dict[str, Any]:
    """The values without those that the script reads itself."""
    read_by_script = {"path", "split", "type", "max_length", "dataset_kwargs"}
    kept = dict(data)
    for name in rows_given:
        if isinstance(section := data.get(name), Mapping):
            kept[name] = {key: value for key, value in section.items() if key not in read_by_script}
    return kept


def _stated(section: Section | GenerationHyperparameters) -> dict[str, Any]:
    """AReaL's keys that were given or differ from AReaL's default; nested."""
    areals = next((cls for cls in type(section).__mro__ if cls in _CLASSES.values()), GenerationHyperparameters)
    given = section._given if isinstance(section, Section) else frozenset()
    stated: dict[str, Any] = {}
    for field in dataclasses.fields(areals):
        value, is_given = getattr(section, field.name), field.name in given
        if isinstance(value, Section | GenerationHyperparameters):
            below = _stated(value)
            if below or field.default is None:  # a section that is not there by default says something by itself
                stated[field.name] = below
        elif is_given or value != _default(field):
            stated[field.name] = value
    return stated


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
