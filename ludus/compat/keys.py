"""Translates a family's configuration keys to ours, by one table per family.

Knows: names, values, notes about them.  Knows not: any family, what any key does.
Invariant: every key in a table is translated, is not needed because its effect happens here anyway, or is reported as
left out; none is dropped silently.
"""

from __future__ import annotations

import difflib
import logging
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ludus.compat.importing.report import Fate
from ludus.errors import ConfigError, UserError
from ludus.settings import Path_, leaves, with_value

logger = logging.getLogger(__name__)

Given = Mapping[str, Any]
"""All given keys with their values, by dotted name."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The translation of one key with its value."""

    fate: Fate
    note: str = ""
    """What is different here, or why the key is not used."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Values of our keys, by dotted name."""


Rule = Callable[[Any, Given], Meaning]
"""(value, all given keys): the meaning of a key, which may depend on the other keys."""
Table = Mapping[str, Rule]
"""Rules by dotted name or pattern with `*`. A name has precedence over patterns, a longer pattern over a shorter."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key whose meaning depends only on its value."""

    ours: tuple[str, ...] = ()
    """Our keys with the same meaning. All of them get the value, except that `a.b=text` gets the text. `a.*` for a
    pattern `b.*`: the same name below `a`."""
    convert: Callable[[Any], Any] = lambda value: value
    """Converts the value. If the result is None, the key counts as not given."""
    note: str = ""
    """What is different here, or why the key is not needed."""
    values: tuple[Any, ...] | None = None
    """The allowed values; for a key without one of ours, the values that correspond to what happens here. None: any."""
    otherwise: str = ""
    """Why other values are not possible."""

    def __call__(self, value: Any, _given: Given) -> Meaning:
        if value is None and self.values is not None and True not in self.values:
            return Meaning("not needed")  # nothing is asked for
        if self.values is not None and value not in self.values:
            happens = " or ".join(map(repr, self.values))
            return Meaning("left out", self.otherwise or f"it is {happens} here, as {self.note}")
        if self.ours:
            own = self.convert(value)
            named = [] if own is None else [each.partition("=") for each in self.ours]
            ours = {name: text or own for name, _, text in named}
            return Meaning("changed" if ours and self.note else "taken" if ours else "not needed", self.note, ours)
        return Meaning("not needed", self.note)


@dataclass(frozen=True, slots=True)
class Values:
    """A key whose values each stand for certain values of our keys; other values have no counterpart."""

    by_value: Mapping[str, Mapping[str, Any]]
    """Values of our keys, by the text of the value."""

    @property
    def ours(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(own for values in self.by_value.values() for own in values))

    def __call__(self, value: Any, _given: Given) -> Meaning:
        if value is None:
            return Meaning("not needed")  # nothing is asked for
        ours = self.by_value.get(str(value))
        if ours is None:
            return Meaning("left out", f"{value!r} is not available here; there are {', '.join(self.by_value)}")
        return Meaning("taken" if ours else "not needed", ours=ours)


def to(*ours: str, convert: Callable[[Any], Any] = lambda value: value, note: str = "") -> Key:
    """A key that is translated to keys of Ludus."""
    return Key(ours, convert, note)


def fixed(*values: Any, note: str = "", otherwise: str = "") -> Key:
    """A key whose value is fixed here."""
    return Key(values=values, note=note, otherwise=otherwise)


def not_needed(note: str, *names: str) -> dict[str, Key]:
    """Keys that are not needed here, whatever their values."""
    return dict.fromkeys(names, Key(note=note))


def left_out(note: str, *names: str) -> dict[str, Key]:
    """Keys whose effect does not exist here."""
    return dict.fromkeys(names, Key(values=(), otherwise=note))


def only(acts: Callable[[Given], object], rule: Rule, note: str) -> Rule:
    """A key that only has an effect if `acts`. note: used if it has none."""
    return lambda value, given: rule(value, given) if acts(given) else Meaning("not needed", note)


def first_of(ours: str, *names: str, note: str = "") -> dict[str, Rule]:
    """Several keys for one of ours: the first given one counts."""

    def rule_of(idx: int) -> Rule:
        def rule(value: Any, given: Given) -> Meaning:
            before = next((name for name in names[:idx] if name in given), None)
            return to(ours, note=note)(value, given) if before is None else Meaning("not needed", f"{before} says it")

        return rule

    return {name: rule_of(idx) for idx, name in enumerate(names)}


def _same_as(key: str, note: str, default: Any = None) -> Rule:
    return lambda value, given: Meaning("not needed" if value == given.get(key, default) else "left out", note)


def _condition(text: str) -> Callable[[Given], bool]:
    """The condition `key` (it is given and not false), `key=text`, or either with a leading `!`."""
    key, _, wanted = text.removeprefix("!").partition("=")
    is_so = not text.startswith("!")
    return lambda given: (str(given.get(key)) == wanted if wanted else bool(given.get(key))) is is_so


def _if_positive(value: Any) -> Any:
    return value if isinstance(value, int) and value > 0 else None


def keys_beside(file: str, rules: Table | None = None) -> dict[str, Rule]:
    """The table in `keys.toml` beside `file`, preceded by `rules`.

    Sections: same, renamed, changed, counted, values, fixed, first, same_as, left_out, not_needed, when.
    """
    own = rules or {}
    found = defaultdict(dict, tomllib.loads(Path(file).with_name("keys.toml").read_text(encoding="utf-8")))
    table: dict[str, Rule] = {**own, **{name: to(name) for name in found.pop("same", "").split()}}
    table |= {name: to(*ours.split()) for name, ours in found["renamed"].items()}
    table |= {name: to(key["ours"], note=key["note"]) for name, key in found["changed"].items()}
    table |= {name: to(ours, convert=_if_positive) for name, ours in found["counted"].items()}
    table |= {name: Values(by_value) for name, by_value in found["values"].items()}
    table |= {name: fixed(*key.pop("values"), **key) for name, key in found["fixed"].items()}
    table |= {name: _same_as(**key) for name, key in found["same_as"].items()}
    for ours, key in found["first"].items():
        table |= first_of(ours, *key.pop("keys").split(), **key)
    for make in (left_out, not_needed):
        for note, names in found[make.__name__].items():
            table |= make(note, *names.split())
    table |= own
    for condition, key in found["when"].items():
        table |= {name: only(_condition(condition), table[name], key["note"]) for name in key["keys"].split()}
    return table


def meaning_of(table: Table, name: str, value: Any, given: Given) -> Meaning | None:
    """The meaning of a key. None: it is not in the table."""
    fitting = [name] if name in table else [each for each in table if fnmatchcase(name, each)]
    pattern = max(fitting, key=len, default=None)
    if pattern is None:
        return None
    meaning = table[pattern](value, given)
    below = name[len(pattern) - 1 :]
    ours = {f"{own[:-1]}{below}" if own.endswith("*") else own: value for own, value in meaning.ours.items()}
    return Meaning(meaning.fate, meaning.note, ours)


def is_named(ours: str, named: Collection[str]) -> bool:
    """Whether one of the named keys of Ludus sets this key, or decides about it."""
    unit = _unit(ours)
    for name in named:
        other = _unit(name)
        if unit == other or unit.startswith(f"{other}.") or other.startswith(f"{unit}."):
            return True
        if name == "algorithm.name" and ours.startswith("algorithm."):
            return True
    return False


def _unit(name: str) -> str:
    """What is chosen as a whole: a part of the algorithm, the end of the run."""
    parts = name.split(".")
    if parts[0].startswith("total_train_"):
        return "total_train"
    return ".".join(parts[:2]) if parts[0] == "algorithm" else name


def read(table: Table, data: Mapping[str, Any]) -> Iterator[tuple[Path_, Any, Meaning | None]]:
    """Path, value and meaning of every key in nested values."""
    given = {".".join(map(str, path)): value for path, value in leaves(data)}
    for path, value in leaves(data):
        yield path, value, meaning_of(table, ".".join(map(str, path)), value, given)


def renamed(table: Table, data: Mapping[str, Any], family: str, roots: Collection[str]) -> dict[str, Any]:
    """Nested values with the family's keys renamed to ours. roots: keys below them always are the family's.

    Raises ConfigError for a key without a counterpart, with an impossible value, or given under both names.
    """
    found = list(read(table, data))
    refused = [_refusal(table, ".".join(map(str, path)), value, meaning, roots) for path, value, meaning in found]
    if any(refused):
        said = "\n".join(f"  {each}" for each in refused if each)
        raise ConfigError(
            f"keys of {family} that cannot be:\n{said}\nThose that can are in docs/coming-from-{family}.md"
        )
    unneeded: dict[str, list[str]] = defaultdict(list)
    for path, _, meaning in found:
        if meaning is not None and meaning.fate == "not needed" and meaning.note:
            unneeded[meaning.note].append(".".join(map(str, path)))
    if unneeded:
        said = "; ".join(f"{', '.join(names)} ({note})" for note, names in unneeded.items())
        logger.warning("keys of %s that are not needed here: %s", family, said)
    ours = {path: value for path, value, meaning in found if meaning is None}
    for path, value, meaning in found:
        name = ".".join(map(str, path))
        for own, here in ({} if meaning is None else meaning.ours).items():
            other = ours.setdefault(tuple(own.split(".")), here)
            if other != here:
                raise ConfigError(
                    f"{name}={value!r} is {own} here, which is given as {other!r} too; remove one of them"
                )
    return nested(ours)


def _refusal(table: Table, name: str, value: Any, meaning: Meaning | None, roots: Collection[str]) -> str | None:
    """Why a key is refused. None: it is not."""
    if meaning is not None:
        return f"{name}={value!r} is not possible: {meaning.note}" if meaning.fate == "left out" else None
    if name.partition(".")[0] not in roots:
        return None
    best = difflib.get_close_matches(name, table, n=1, cutoff=0.8)
    return f"{name} has no counterpart here{f' (did you mean {best[0]!r}?)' if best else ''}; leave it out"


class _AllGiven(dict[str, Any]):
    """As if every key were given, as 1."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> Any:
        return 1

    def get(self, key: str, default: Any = None) -> Any:
        return 1


def hint(table: Table, unknown: str, family: str) -> str:
    """The end of a clause that says of which of the family's keys an unknown one is the end, and what that is here.
    Empty: of none."""
    found = [(name, *_meant(rule)) for name, rule in table.items() if name.endswith(f".{unknown}")]
    if not found:
        return ""
    # the policy's before the critic's, and those that are something here
    name, ours, note = min(found, key=lambda each: (each[0].startswith("critic."), not each[1], len(each[0])))
    here = f", which is {ours!r} here." if ours else f": {note}." if note else "."
    return f"; {family} calls it {name!r}{here}"


def _meant(rule: Rule) -> tuple[str, str]:
    """Our first key of a rule (empty: none), and its note, whatever the value."""
    if isinstance(rule, Key | Values) and rule.ours:
        return rule.ours[0].partition("=")[0], ""
    try:
        meaning = rule(1, _AllGiven())
    except (UserError, TypeError, ValueError, AttributeError):  # its value is no number
        return "", ""
    return next(iter(meaning.ours), ""), rule.note if isinstance(rule, Key) else ""


def nested(values: Mapping[Path_, Any]) -> dict[str, Any]:
    """Values by path, as a nested mapping."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        tree = with_value(tree, path, value, whole=".".join(map(str, path)))
    return tree
