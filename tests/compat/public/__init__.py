"""The originals' public names, as their wheels have them: `python -m tests.compat.public FAMILY PACKAGE` writes one
file a family, `make public-names` downloads the wheels and writes theirs. realhf was never released as one: its file is
that of the folder `realhf` of AReaL's repository at e7eda16.

A line is a module without its first part, a colon, and the names that it defines; what a package's `__init__` imports
from its own modules is its too. Names with an underscore are private, and so are modules below one. `verl.keys` holds
the keys of verl's configuration, a line each, with their defaults. `verl.members` holds the public members of those of
its classes that have a name here: attributes, and methods with their parameters, of which `=` marks one that has a
default, `*` stands before those that are given by name alone, and `*args` where any may be given by place.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ludus.settings import leaves

FOLDER = Path(__file__).parent
TESTS = {"test", "tests"}
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


def public_members(package: Path, classes: Collection[str]) -> dict[str, dict[str, tuple[str, ...] | None]]:
    """By class, a dotted name below the package, its own members: a method with its parameters, an attribute with
    None."""
    found = {}
    for name in sorted(classes):
        module, _, cls = name.rpartition(".")
        file = package.joinpath(*module.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.is_file():
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == cls:
                    found[name] = dict(_members(node))
    return found


def read_members(family: str) -> dict[str, dict[str, tuple[str, ...] | None]]:
    """What the family's file of members says."""
    lines = (FOLDER / f"{family}.members").read_text().splitlines()
    found: dict[str, dict[str, tuple[str, ...] | None]] = {}
    for cls, _, members in (line.partition(": ") for line in lines):
        found[cls] = {}
        for member in members.split():
            name, is_method, parameters = member.removesuffix(")").partition("(")
            found[cls][name] = tuple(filter(None, parameters.split(","))) if is_method else None
    return found


def write_members(family: str, classes: Mapping[str, Mapping[str, tuple[str, ...] | None]]) -> None:
    lines = []
    for cls, members in classes.items():
        shown = (f"{name}({','.join(given)})" if given is not None else name for name, given in sorted(members.items()))
        lines.append(f"{cls}: {' '.join(shown)}".rstrip())
    (FOLDER / f"{family}.members").write_text("\n".join(lines) + "\n")


def read_keys(family: str) -> dict[str, Any]:
    """What the family's file of keys says."""
    lines = (FOLDER / f"{family}.keys").read_text().splitlines()
    return {name: json.loads(value) for name, _, value in (line.partition(" = ") for line in lines)}


def write_keys(family: str, keys: Mapping[str, Any]) -> None:
    lines = (f"{name} = {json.dumps(value)}" for name, value in keys.items())
    (FOLDER / f"{family}.keys").write_text("\n".join(lines) + "\n")


def assigned(method: ast.AST) -> Iterator[str]:
    """Names of the public attributes that a method gives its object."""
    for node in ast.walk(method):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                match each:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name) if not name.startswith("_"):
                        yield name


def _members(cls: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                yield from ((name, None) for name in assigned(node))
            if node.name == "__init__" or not node.name.startswith("_"):
                decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
                is_attribute = bool(decorators & {"property", "cached_property"})
                yield node.name, None if is_attribute else _parameters(node.args, "staticmethod" not in decorators)
        else:
            for name in _defined([node], "", is_package=False):
                if not name.startswith("_") and name != "model_config":
                    yield name, None


def _parameters(args: ast.arguments, is_bound: bool) -> tuple[str, ...]:
    placed = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(placed) - len(args.defaults)) + list(args.defaults)
    shown = [f"{arg.arg}{'=' * (default is not None)}" for arg, default in zip(placed, defaults, strict=True)]
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    shown += ["*args"] if args.vararg else ["*"] * bool(args.kwonlyargs)
    shown += [f"{arg.arg}{'=' * (default is not None)}" for arg, default in named]
    return tuple(shown[int(is_bound) :])


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
