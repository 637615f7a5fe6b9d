"""Another program's wheel read as text: nothing of it is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def fields(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """Name and annotation of every field of a class."""
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)


def strings(nodes: list[ast.expr | None] | list[ast.expr]) -> Iterator[str]:
    """Those that stand there as they are."""
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
