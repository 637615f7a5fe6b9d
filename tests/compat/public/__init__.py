"""The originals' public names, as their wheels have them: `python -m tests.compat.public FAMILY PACKAGE` writes one
file a family, `make public-names` downloads the wheels and writes theirs. realhf was never released as one: its file is
that of the folder `realhf` of AReaL's repository at e7eda16.

A line is a module without its first part, a colon, and the names that it defines; what a package's `__init__` imports
from its own modules is its too. Names with an underscore are private, and so are modules below one. `verl.keys` holds
the keys of verl's configuration, a line each, with their defaults.

`FAMILY.members` holds what is called or read of the functions and classes that the tables have where the original
defines them: a module, a colon, a function or constructor with its arguments, or a member. Of members those with an
underscore are private but for ART's `_experimental_…`; arguments are not, for calls name them. Fields of records are
arguments.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ludus.settings import leaves

FOLDER = Path(__file__).parent
TESTS = {"test", "tests"}
WITH_MEMBERS = ("areal", "art", "realhf")
"""Families whose members and arguments are held to the originals' too; verl's are not yet."""
DEFAULTS = Path("trainer", "config", "_generated_ppo_trainer.yaml")
"""verl's configuration with all that its parts say, below its package."""


def public_names(package: Path) -> dict[str, list[str]]:
    """By module of the package in a folder; nothing of it is imported."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        *above, last = file.relative_to(package).with_suffix("").parts
        is_package = last == "__init__"
        parts = above if is_package else [*above, last]
        if not TESTS.intersection(parts) and not any(part.startswith("_") for part in parts):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            names = {
                name
                for name in _defined(tree.body, f"{package.name}.", is_package=is_package)
                if not name.startswith("_")
            }
            found[".".join(parts)] = sorted(names)
    return found


@dataclass(frozen=True)
class Member:
    """A function, a constructor, or a member of a class of an original's."""

    module: str
    name: str
    arguments: tuple[str, ...] | None = None
    """By position until one with a star, `*` for none. None: it is not called."""

    def __str__(self) -> str:
        called = "" if self.arguments is None else f"({', '.join(self.arguments)})"
        return f"{self.module}: {self.name}{called}"

    @classmethod
    def parse(cls, line: str) -> Member:
        module, _, called = line.partition(": ")
        name, begin, arguments = called.removesuffix(")").partition("(")
        return cls(module, name, tuple(filter(None, arguments.split(", "))) if begin else None)


def public_members(package: Path, wanted: Mapping[str, Collection[str]]) -> list[Member]:
    """Of the package in a folder. wanted: names of functions and classes by the module that defines them."""
    found: dict[tuple[str, str], Member] = {}
    for module in sorted(wanted):
        path = package.joinpath(*filter(None, module.split(".")))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            for name, arguments in _called(ast.parse(file.read_text(encoding="utf-8")).body):
                if name.partition(".")[0] not in wanted[module]:
                    continue
                before = found.get((module, name))
                if before is None or len(before.arguments or ()) <= len(arguments or ()):  # the longest of overloads
                    found[module, name] = Member(module, name, arguments)
    return list(found.values())


def read_members(family: str) -> list[Member]:
    """What the family's file of members says."""
    return [Member.parse(line) for line in (FOLDER / f"{family}.members").read_text().splitlines()]


def write_members(family: str, members: Iterable[Member]) -> None:
    (FOLDER / f"{family}.members").write_text("".join(f"{each}\n" for each in members))


def read(family: str) -> dict[str, list[str]]:
    """What the family's file says."""
    lines = (FOLDER / f"{family}.txt").read_text().splitlines()
    return {path: names.split() for path, _, names in (line.partition(":") for line in lines)}


def write(family: str, names: Mapping[str, list[str]]) -> None:
    lines = (f"{path}: {' '.join(found)}".rstrip() for path, found in names.items())
    (FOLDER / f"{family}.txt").write_text("\n".join(lines) + "\n")


def default_keys(package: Path) -> dict[str, Any]:
    """The keys of verl's own configuration by their dotted names, each with its default; None for one that says what
    another does."""
    found = {}
    for path, value in leaves(yaml.safe_load((package / DEFAULTS).read_text(encoding="utf-8"))):
        if path[-1] != "_target_":
            found[".".join(map(str, path))] = None if isinstance(value, str) and "${" in value else value
    return found


def read_keys(family: str) -> dict[str, Any]:
    """What the family's file of keys says."""
    lines = (FOLDER / f"{family}.keys").read_text().splitlines()
    return {name: json.loads(value) for name, _, value in (line.partition(" = ") for line in lines)}


def write_keys(family: str, keys: Mapping[str, Any]) -> None:
    lines = (f"{name} = {json.dumps(value)}" for name, value in keys.items())
    (FOLDER / f"{family}.keys").write_text("\n".join(lines) + "\n")


def _defined(body: list[ast.stmt], own: str, *, is_package: bool) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(module=module, level=level) if is_package and (level or str(module).startswith(own)):
                yield from (each.asname or each.name for each in node.names if each.name != "*")
            case ast.If() | ast.Try():
                yield from _defined(node.body, own, is_package=False)


_Called = tuple[str, tuple[str, ...] | None]
# Functions under other decorators are what those make of them.
_PLAIN = {"staticmethod", "classmethod", "abstractmethod", "overload", "contextmanager", "asynccontextmanager"}


def _called(body: list[ast.stmt]) -> Iterator[_Called]:
    """Public functions and classes, with what is called or read of them."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not node.name.startswith("_"):
                if _decorators(node) <= _PLAIN:
                    yield node.name, _arguments(node.args)
            case ast.ClassDef() if not node.name.startswith("_"):
                yield from _of_class(node)


def _of_class(node: ast.ClassDef) -> Iterator[_Called]:
    fields = {
        each.target.id: each
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = next((each for each in methods if each.name == "__init__"), None)
    is_dataclass = "dataclass" in _decorators(node)
    given = tuple(
        name
        for name, each in fields.items()
        if "ClassVar" not in ast.unparse(each.annotation) and (is_dataclass or not name.startswith("_"))
    )
    is_record = own is None and (is_dataclass or bool(given and node.bases))
    if own is not None:
        yield node.name, _arguments(own.args, is_method=True)
    elif is_record:  # pydantic's, mappings with types, and what extends another are made by name
        yield node.name, given if is_dataclass and not node.bases else ("*", *given)
    yield from (
        (f"{node.name}.{name}", None) for name in fields if not (name.startswith("_") or (is_record and name in given))
    )
    for each in methods:
        if each.name.startswith("_") and not each.name.startswith("_experimental_"):
            continue
        decorators = _decorators(each)
        if decorators <= _PLAIN:
            yield f"{node.name}.{each.name}", _arguments(each.args, is_method="staticmethod" not in decorators)
        elif decorators & {"property", "cached_property", "setter"}:
            yield f"{node.name}.{each.name}", None


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return {each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in called}


def _arguments(of: ast.arguments, *, is_method: bool = False) -> tuple[str, ...]:
    by_position = [each.arg for each in (*of.posonlyargs, *of.args)][is_method:]
    star = [f"*{of.vararg.arg}"] if of.vararg else ["*"] if of.kwonlyargs else []
    named = [each.arg for each in of.kwonlyargs]
    return (*by_position, *star, *named, *([f"**{of.kwarg.arg}"] if of.kwarg else []))
