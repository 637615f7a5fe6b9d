"""Pages of the documentation as programs: the blocks of Python, and what the page says that they print."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:^```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> Iterator[tuple[CodeType, str | None]]:
    """Each block, compiled so that it may await, and the output that follows it. None: the page shows none."""
    path = DOCS / page
    text = path.read_text()
    for found in _BLOCK.finditer(text):
        line = text[: found.start()].count("\n") + 1
        source = "\n" * line + found.group(1)
        yield compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), found.group(2)


def run_block(code: CodeType, names: dict[str, Any]) -> None:
    """Runs the block as a notebook does, with the names of the blocks before it."""
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)
