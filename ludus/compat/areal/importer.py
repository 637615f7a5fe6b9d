"""Converts AReaL's YAML to a configuration of Ludus, with a report on every key.

Knows: unresolved values, former names of keys.  Knows not: files, how keys are translated.
Invariants: every key that is set is in the report; the result can be loaded by `ludus train`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import yaml

from ludus.compat.areal.keys import KEYS, NORMS, SECTIONS, STEPS, defaults, implied, steps_of_epoch
from ludus.compat.config import Config
from ludus.compat.importing.interpolate import MISSING, leaves
from ludus.compat.importing.report import Entry
from ludus.compat.keys import Meaning, meaning_of, nested
from ludus.errors import ConfigError

_AGENT, _AGENT_BEFORE = "rollout.agent.", "rollout.openai."
"""Prefix of the agents' settings, and its former name."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A configuration, as a mapping to be written, and the report on each key."""

    config: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def to_yaml(self) -> str:
        return yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)


def import_areal(data: Mapping[str, Any], beside: Collection[str] = (), num_rows: int | None = None) -> Imported:
    """Convert AReaL's configuration, with references resolved, and its defaults that change what is trained.

    beside: names of Ludus's keys that are given too, and come before those defaults; `algorithm.name` is all of its
    algorithm, whatever AReaL's keys say about it.  num_rows: to train on. None: not known.
    Raises ConfigError if Ludus does not accept a converted value.
    """
    # an empty section of the table says that there is one, with AReaL's defaults
    named: dict[str, Any] = {**{name: {} for name in KEYS if _is_empty(data, name)}, **leaves(data)}
    found = {name.replace(_AGENT_BEFORE, _AGENT, 1): (name, value) for name, value in named.items()}
    given = {
        key: value
        for key, (_, value) in found.items()
        if (value is not None or fnmatchcase(key, NORMS)) and not _is_open(value)
    }
    by_default = implied(given)
    given |= by_default
    if num_rows:
        given[STEPS] = steps_of_epoch(given, num_rows)
    ours, entries, is_preset = defaults(given, by_default, beside), [], "algorithm.name" in beside
    for key, (name, value) in found.items():
        if value is None and not fnmatchcase(key, NORMS):
            continue
        meaning = _meaning(key, value, given)
        if is_preset and meaning.ours and all(own.startswith("algorithm.") for own in meaning.ours):
            meaning = Meaning("not needed", "algorithm.name sets it")
        ours |= meaning.ours
        where = " and ".join(own for own in meaning.ours if own != name)
        entries.append(Entry(name, meaning.fate, ": ".join(filter(None, (where, meaning.note)))))
    config = nested({tuple(own.split(".")): value for own, value in ours.items()})
    try:
        Config(**config)
    except ConfigError as error:
        raise ConfigError(f"the imported configuration would not load: {error}") from None
    return Imported(config, tuple(entries))


def _is_empty(data: Mapping[str, Any], name: str) -> bool:
    """Whether a section is there without any key."""
    below: Any = data
    for part in name.split("."):
        below = below.get(part) if isinstance(below, Mapping) else None
    return isinstance(below, Mapping) and not below


def _is_open(value: Any) -> bool:
    return value == MISSING or (isinstance(value, str) and "${" in value)


def _meaning(key: str, value: Any, given: Mapping[str, Any]) -> Meaning:
    if _is_open(value):
        return Meaning("left out", f"its value {value!r} is not in this file")
    if key.partition(".")[0] not in SECTIONS:
        return Meaning("left out", "AReaL has no such key; what is your agent's own goes into workflow_kwargs")
    return meaning_of(KEYS, key, value, given) or Meaning("left out", "Ludus knows no such key")
