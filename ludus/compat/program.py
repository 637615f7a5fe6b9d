"""Runs a script or a notebook as a program, with constants replaced, and `await` at the top level of cells.

Knows: syntax trees, the JSON of notebooks, IPython's own lines.  Knows not: families, what is trained.
Invariant: every line of a notebook that is not run is reported.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from ludus.compat.overrides import with_constants
from ludus.errors import UserError

NOTEBOOK = ".ipynb"
_MAGIC = re.compile(r"(\s*)(?:[%!]|\w+\s*=\s*(?:!|%[a-z]))")
# Cell magics whose cells are Python.
_PYTHON_CELLS = ("capture", "time", "timeit")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run as `__main__`."""

    path: Path
    codes: Sequence[CodeType]
    """One for a script; for a notebook, one or more for each cell, which may await."""
    skipped: Sequence[str]
    """Lines of a notebook that are IPython's, and are not run."""

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == NOTEBOOK

    @classmethod
    def read(cls, path: Path, constants: Mapping[str, str] | None = None) -> Program:
        """Read a script or notebook. constants: values, as YAML, of names that are assigned at top level.

        Raises UserError for a name that is not assigned, or an invalid notebook; SyntaxError.
        """
        text = path.read_text(encoding="utf-8", errors="replace")
        skipped: list[str] = []
        sources = {str(path): text} if path.suffix != NOTEBOOK else dict(_cells(path, text, skipped))
        # All cells together, as a constant may be in any cell, and it is an error only if it is in none.
        trees = {name: ast.parse(source, name) for name, source in sources.items()}
        whole = ast.Module([node for tree in trees.values() for node in tree.body], [])
        with_constants(whole, constants or {}, str(path))
        if path.suffix != NOTEBOOK:
            return cls(path, [compile(tree, name, "exec") for name, tree in trees.items()], ())
        codes = [code for name, tree in trees.items() for code in _cell_codes(tree, name, sources[name])]
        return cls(path, codes, skipped)

    def run(self) -> None:
        """Run it as `__main__`, with its folder on the path."""
        module = ModuleType("__main__")
        module.__dict__.update(__file__=str(self.path), __builtins__=__builtins__)
        sys.path.insert(0, str(self.path.resolve().parent))
        before, sys.modules["__main__"] = sys.modules["__main__"], module
        try:
            if self.is_notebook:
                module.__dict__["display"] = sys.displayhook  # IPython's, of one value
                asyncio.run(self._cells(module))
            else:
                for code in self.codes:
                    exec(code, module.__dict__)
        finally:
            sys.modules["__main__"] = before

    async def _cells(self, module: ModuleType) -> None:
        # All cells run on one event loop, as in a notebook, so that tasks of one continue while another awaits.
        for code in self.codes:
            result = eval(code, module.__dict__)
            if inspect.iscoroutine(result):
                await result


def _cells(path: Path, text: str, skipped: list[str]) -> Iterator[tuple[str, str]]:
    """Name and Python source of each cell; other lines are added to `skipped`."""
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no notebook of version 4: it must be JSON with a list 'cells'") from None
    for idx, cell in enumerate(cells, start=1):
        if cell.get("cell_type") == "code":
            name, given = f"<{path.name}, cell {idx}>", cell["source"]
            source = _python_of("".join(given), skipped)
            lines = source.splitlines(keepends=True)
            linecache.cache[name] = (len(source), None, lines, name)  # for tracebacks and `inspect.getsource`
            yield name, source


def _python_of(source: str, skipped: list[str]) -> str:
    """The cell with IPython's lines replaced by `pass`; adds those to `skipped`."""
    try:
        ast.parse(source)
    except SyntaxError:
        pass
    else:
        return source  # valid Python: a line that begins with % may be part of a string
    kind = re.match(r"\s*%%(\w+)", source)
    if kind and kind[1] not in _PYTHON_CELLS:
        skipped.append(source.strip().partition("\n")[0])
        return ""
    kept, is_continued = [], False
    for line in source.splitlines():
        magic = _MAGIC.match(line)
        if magic or is_continued:
            if not is_continued:
                skipped.append(line.strip())
            is_continued = line.endswith("\\")
            kept.append(f"{magic[1]}pass" if magic else "")
        else:
            kept.append(line)
    return "\n".join(kept)


def _cell_codes(tree: ast.Module, name: str, source: str) -> Iterator[CodeType]:
    """Code of the statements, and of the last expression separately, as its value is shown."""
    *body, last = tree.body or [ast.Pass(lineno=1, col_offset=0)]
    is_shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    yield compile(ast.Module(body if is_shown else [*body, last], []), name, "exec", flags)
    if is_shown:
        yield compile(ast.Interactive([last]), name, "single", flags)
