"""A progress bar where somebody looks at one: a terminal or a notebook, with tqdm, which comes with OpenAI's SDK.

Knows: tqdm, if it is installed.  Knows not: what is counted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Bar:
    """How far something has come. Nobody sees this one; tqdm's have the same methods."""

    def __init__(self, total: float | None = None) -> None:
        self.total = total

    def update(self, n: float = 1) -> object: ...

    def refresh(self) -> object: ...

    def set_postfix(self, ordered_dict: Mapping[str, object]) -> object: ...


@contextmanager
def progress_bar(description: str | None, total: int, *, unit: str = "it") -> Iterator[Bar]:
    """A bar for the length of the block. description: None: none is shown."""
    tqdm = None if description is None else _tqdm()
    if tqdm is None:
        yield Bar(total)
    else:
        with tqdm(total=total, desc=description, unit=unit) as bar:
            yield bar


def _tqdm() -> Any:
    """The class of bars that fits here. None: nobody looks, or it is not installed."""
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return None
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ModuleNotFoundError:
        return None
