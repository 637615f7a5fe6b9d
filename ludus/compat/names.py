"""The originals' module paths and names: tables that map each to an object here, and modules made from the tables.

Knows: import machinery, tables.  Knows not: what any name does; `<family>/names.toml` maps it.
Invariants: nothing of a family is loaded before one of its names is used; a name is the same object on every path;
our own modules are found before the originals' paths, and no two have the same name (tests/compat/test_names.py).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import ConfigError, MissingModuleError, UserError
from ludus.import_strings import import_object

logger = logging.getLogger(__name__)

HERE = "ludus.compat"
FAMILIES = ("areal", "art", "realhf", "verl")
Modules = Mapping[str, Mapping[str, str]]
"""By module of the original, without its first part: its names, each with 'module:attribute' here."""
Reasons = Mapping[str, str]
"""By dotted name of the original, without its first part: a note or reason."""


@dataclass(frozen=True, slots=True)
class Table:
    """Every public name of an original: where it is here, or why it is missing.

    Sections of `names.toml`: modules of the original, with the supported names; `conditions`, `not_needed`, `refused`,
    `unneeded_members` and `refused_members`, each with dotted names by note. An argument follows a colon; several are
    separated by commas.
    """

    family: str
    modules: Modules
    conditions: Reasons
    """What is different about supported names."""
    not_needed: Reasons
    """Functions that can be imported and called but do nothing, each with the reason."""
    refused: Reasons
    """Names, and modules with everything below them, that are not supported: why, and what to use instead."""
    unneeded_members: Reasons
    """Members and arguments of supported names that are missing or ignored because they are not needed:
    `Class.member`, `Class:argument`, `Class.method:argument`."""
    refused_members: Reasons
    """Members and arguments that are not supported, and what to use instead."""

    @classmethod
    @cache
    def of(cls, family: str) -> Table:
        read = tomllib.loads(Path(__file__).with_name(family).joinpath("names.toml").read_text(encoding="utf-8"))
        said = [
            {name: why for why, names in read.pop(section, {}).items() for name in _apart(names)}
            for section in ("conditions", "not_needed", "refused", "unneeded_members", "refused_members")
        ]
        modules: dict[str, dict[str, str]] = {}
        for path, names_by_module in read.items():
            modules[path] = {}
            for where, names in names_by_module.items():
                module = where if where.startswith("ludus.") or where == "builtins" else f"{HERE}.{family}.{where}"
                for name in names.split():
                    theirs, _, ours = name.partition("=")
                    modules[path][theirs] = f"{module}:{ours or theirs}"
        return cls(family, modules, *said)

    @property
    def paths(self) -> set[str]:
        """Modules with at least one supported name."""
        return {*self.modules, *(name.rpartition(".")[0] for name in self.not_needed)}

    @property
    def all_names(self) -> set[str]:
        """All supported dotted names."""
        return {f"{path}.{name}".lstrip(".") for path, names in self.modules.items() for name in names}

    def has_module(self, path: str) -> bool:
        return any(known == path or known.startswith(f"{path}.") for known in self.paths)

    def children(self, path: str) -> set[str]:
        """Names of the modules directly below `path`."""
        prefix = f"{path}." if path else ""
        return {known[len(prefix) :].partition(".")[0] for known in self.paths if known and known.startswith(prefix)}

    def names(self, path: str) -> Mapping[str, str]:
        return self.modules.get(path, {})

    def refusal(self, path: str) -> str | None:
        """Why a name or a module is not supported. None: there is no entry for it."""
        parts = path.split(".")
        above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self.refused[each] for each in above if each in self.refused), None)

    def missing(self, path: str) -> ModuleNotFoundError:
        """The error for an unsupported path, with the reason or the nearest name, and the page that lists all."""
        module, _, name = path.rpartition(".")
        known = {*self.names(module), *self.children(module)}
        best = difflib.get_close_matches(name, known, n=1)
        there = f"{HERE}.{self.family}.{module}".rstrip(".")
        if (why := self.refusal(path)) is not None:
            hint = f": {why}."
        else:
            hint = f"; did you mean {best[0]!r}?" if best else f"; {there} has {_listed(known)}."
        # Named without our prefix: `from m import x` would swallow an error that names m.x.
        return ModuleNotFoundError(
            f"{self.family}.{path} is not here{hint} All that is: {page(self.family)}",
            name=f"{self.family}.{path}",
        )


class NotNeeded:
    """A function of an original that does nothing here, which the first call logs."""

    def __init__(self, name: str, why: str) -> None:
        self._name, self._why, self._is_said = name, why, False

    def __repr__(self) -> str:
        return f"<{self._name}: not needed, {self._why}>"

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Returns None; used as a decorator, returns the decorated object."""
        if not self._is_said:
            logger.warning("%s does nothing: %s", self._name, self._why)
            self._is_said = True
        is_decorator = len(arguments) == 1 and not options and inspect.isfunction(arguments[0])
        return arguments[0] if is_decorator else None


class FamilyModule(ModuleType):
    """A module of an original. Names are resolved on first access, and cached."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspect, doctest and pickle ask every module for
            raise AttributeError(name)
        table, path = _place(self.__name__)
        if name in table.names(path):
            vars(self)[name] = found = load(table.names(path)[name])
            return found
        if (whole := f"{path}.{name}".lstrip(".")) in table.not_needed:
            vars(self)[name] = stub = NotNeeded(f"{table.family}.{whole}", table.not_needed[whole])
            return stub
        if name in table.children(path):
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(str(table.missing(whole)), name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        table, path = _place(self.__name__)
        if isinstance(value, FamilyModule) and name in {*table.names(path), *_below(table.not_needed, path)}:
            return  # the machinery binds a module to its parent; a name of theirs that is the same comes first
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        table, path = _place(self.__name__)
        return sorted({*vars(self), *table.names(path), *table.children(path), *_below(table.not_needed, path)})

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class FamilyModules(MetaPathFinder, Loader):
    """Finds and creates these modules. It is the last finder, because our own modules are files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec. None: not a family's path. Raises ModuleNotFoundError for modules that the original has but we do
        not."""
        if not fullname.startswith(f"{HERE}.") or fullname.split(".")[2] not in FAMILIES or fullname.count(".") < 3:
            return None
        table, below = _place(fullname)
        if not table.has_module(below):
            raise table.missing(below)
        # All of them packages: so that `from module import name` asks for 'module.name' and is told what is missing.
        return ModuleSpec(fullname, self, origin=f"{HERE}.{table.family} (names.toml)", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return FamilyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        furnish(module.__name__)


def furnish(name: str) -> None:
    """Turn the module in `sys.modules` into one of a family; names that it had resolved are resolved again."""
    module = sys.modules[name]
    module.__class__ = FamilyModule
    table, path = _place(name)
    for known in table.names(path):
        vars(module).pop(known, None)
    vars(module)["__all__"] = sorted(table.names(path))


def load(target: str) -> Any:
    """The object named by 'module:attribute'."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def hint(reference: str) -> str:
    """A hint for an error about an import string that names an original. Empty: it does not."""
    return f"; here it is 'ludus.compat.{reference}'" if reference.partition(".")[0] in FAMILIES else ""


def page(family: str) -> str:
    """The documentation page of a family."""
    return f"docs/coming-from-{'areal-queues' if family == 'realhf' else family}.md"


def here(reference: Any) -> Any:
    """An original's import string, translated to ours; anything else unchanged."""
    return f"{HERE}.{reference}" if isinstance(reference, str) and hint(reference) else reference


def find(reference: str) -> Any:
    """The object of an import string. Raises UserError, with a hint if it names an original."""
    try:
        return import_object(reference)
    except UserError as error:
        raise type(error)(f"{error}{hint(reference)}") from None


def find_class(reference: object, base: type, where: str) -> Any:
    """The subclass of `base` that an import string names.

    where: what stands before it in error messages.  Raises ConfigError.
    """
    try:
        cls = find(str(reference))
    except UserError as error:
        kind = MissingModuleError if isinstance(error, MissingModuleError) else ConfigError
        raise kind(f"{where}: {error}") from None
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        raise ConfigError(f"{where}={reference!r} must be a subclass of {base.__name__}, but is {cls!r:.100}")
    return cls


def install() -> None:
    if not any(isinstance(finder, FamilyModules) for finder in sys.meta_path):
        sys.meta_path.append(FamilyModules())


def _place(name: str) -> tuple[Table, str]:
    family, _, path = name.removeprefix(f"{HERE}.").partition(".")
    return Table.of(family), path


def _below(names: Reasons, path: str) -> set[str]:
    """The last parts of those directly below a module."""
    return {last for module, _, last in (name.rpartition(".") for name in names) if module == path}


def _apart(names: str) -> Iterator[str]:
    """`f:a,b` as `f:a` and `f:b`, anything else as it is."""
    for name in names.split():
        function, colon, arguments = name.partition(":")
        yield from (f"{function}:{each}" for each in arguments.split(",")) if colon else (name,)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
