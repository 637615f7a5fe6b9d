"""How the originals' public functions and classes are called and read, as their wheels have them.

`FAMILY.calls` holds what is called or read of the functions and classes that the tables have where the original defines
them: a module, a colon, a function or constructor with its arguments, or a member. Of members those with an underscore
are private but for ART's `_experimental_…`; arguments are not, for calls name them. Fields of records are arguments;
what a constructor gives its object is a member.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
FAMILIES = ("areal", "art", "realhf", "verl")


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


def public_calls(package: Path, wanted: Mapping[str, Collection[str]]) -> list[Member]:
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


def read_calls(family: str) -> list[Member]:
    """What the family's file of members says."""
    return [Member.parse(line) for line in (FOLDER / f"{family}.calls").read_text().splitlines()]


def write_calls(family: str, members: Iterable[Member]) -> None:
    (FOLDER / f"{family}.calls").write_text("".join(f"{each}\n" for each in members))


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


_Called = tuple[str, tuple[str, ...] | None]
# Functions under other decorators are what those make of them.
_PLAIN = {"staticmethod", "classmethod", "abstractmethod", "overload", "contextmanager", "asynccontextmanager"}
_PLAIN |= {"rollout_trace_op"}  # verl's, which leaves the signature


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
    for each in methods:
        if each.name.startswith("_") and not each.name.startswith("_experimental_"):
            continue
        decorators = _decorators(each)
        if decorators <= _PLAIN:
            yield f"{node.name}.{each.name}", _arguments(each.args, is_method="staticmethod" not in decorators)
        elif decorators & {"property", "cached_property", "setter"}:
            yield f"{node.name}.{each.name}", None
    attributes = [name for name in fields if not (is_record and name in given)]
    attributes += [
        target.id
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    ]
    attributes += [] if own is None else assigned(own)
    known = {"model_config", *(each.name for each in methods)}
    shown = (name for name in dict.fromkeys(attributes) if name not in known and not name.startswith("_"))
    yield from ((f"{node.name}.{name}", None) for name in shown)


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return {each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in called}


def _arguments(of: ast.arguments, *, is_method: bool = False) -> tuple[str, ...]:
    by_position = [each.arg for each in (*of.posonlyargs, *of.args)][is_method:]
    star = [f"*{of.vararg.arg}"] if of.vararg else ["*"] if of.kwonlyargs else []
    named = [each.arg for each in of.kwonlyargs]
    return (*by_position, *star, *named, *([f"**{of.kwarg.arg}"] if of.kwarg else []))
