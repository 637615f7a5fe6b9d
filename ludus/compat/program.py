"""A script or a notebook as a program: constants replaced, cells one after the other with `await` at top level.

Knows: syntax trees, the JSON of notebooks, lines that are for IPython alone.  Knows not: families, what is trained.
Invariant: what of a notebook is not run is said, line by line.
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
# Cells that are Python, with something said about how they run.
_PYTHON_CELLS = ("capture", "time", "timeit")


@dataclass(frozen=True, slots=True)
class Program:
    """What runs as `__main__`."""

    path: Path
    codes: Sequence[CodeType]
    """A script is one; of a notebook's cell each may await."""
    skipped: Sequence[str]
    """Lines of a notebook that are IPython's."""

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == NOTEBOOK

    @classmethod
    def read(cls, path: Path, constants: Mapping[str, str] | None = None) -> Program:
        """constants: values for names that are assigned at top level, as YAML reads them.

        Raises UserError for a name that is not, or a notebook that is none; SyntaxError.
        """
        text = path.read_text(encoding="utf-8", errors="replace")
        skipped: list[str] = []
        sources = {str(path): text} if path.suffix != NOTEBOOK else dict(_cells(path, text, skipped))
        # As one program: a constant may stand in any cell, and one that stands in none is an error.
        trees = {name: ast.parse(source, name) for name, source in sources.items()}
        whole = ast.Module([node for tree in trees.values() for node in tree.body], [])
        with_constants(whole, constants or {}, str(path))
        if path.suffix != NOTEBOOK:
            return cls(path, [compile(tree, name, "exec") for name, tree in trees.items()], ())
        codes = [code for name, tree in trees.items() for code in _cell_codes(tree, name, sources[name])]
        return cls(path, codes, skipped)

    def run(self) -> None:
        """Runs it as `__main__`, with its folder on the path."""
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
        # In a running loop, all of them, as in a notebook: what one has started goes on while another awaits.
        for code in self.codes:
            result = eval(code, module.__dict__)
            if inspect.iscoroutine(result):
                await result


def _cells(path: Path, text: str, skipped: list[str]) -> Iterator[tuple[str, str]]:
    """Name and Python of each cell; adds to `skipped` what is none."""
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no notebook of version 4: it must be JSON with a list 'cells'") from None
    for idx, cell in enumerate(cells, start=1):
        if cell.get("cell_type") == "code":
            name, given = f"<{path.name}, cell {idx}>", cell["source"]
            source = _python_of("".join(given), skipped)
            lines = source.splitlines(keepends=True)
            linecache.cache[name] = (len(source), None, lines, name)  # for tracebacks, and whoever reads sources
            yield name, source


def _python_of(source: str, skipped: list[str]) -> str:
    """The cell with `pass` where IPython's lines stand; adds those to `skipped`."""
    try:
        ast.parse(source)
    except SyntaxError:
        pass
    else:
        return source  # a line that begins with % may stand in a string
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
    """The statements, and the last expression by itself: its value is shown."""
    *body, last = tree.body or [ast.Pass(lineno=1, col_offset=0)]
    is_shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    yield compile(ast.Module(body if is_shown else [*body, last], []), name, "exec", flags)
    if is_shown:
        yield compile(ast.Interactive([last]), name, "single", flags)
