"""The originals' public names, as their wheels have them: `python -m tests.compat.public FAMILY PACKAGE` writes one
file a family, `make public-names` downloads the wheels and writes theirs. realhf was never released as one: its file is
that of the folder `realhf` of AReaL's repository at e7eda16.

A line is a module without its first part, a colon, and the names that it defines; what a package's `__init__` imports
from its own modules is its too. Names with an underscore are private, and so are modules below one. `verl.keys` holds
the keys of verl's configuration, a line each, with their defaults. How functions and classes are called stands in
`FAMILY.calls` (`calls.py`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
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
