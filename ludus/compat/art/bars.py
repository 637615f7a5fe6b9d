"""A progress bar on a terminal or in a notebook, with tqdm, which comes with OpenAI's SDK.

Knows: tqdm, if it is installed.  Knows not: what is counted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Bar:
    """A progress bar that is not shown, with the methods of tqdm's."""

    def __init__(self, total: float | None = None) -> None:
        self.total = total

    def update(self, n: float = 1) -> object: ...

    def refresh(self) -> object: ...

    def set_postfix(self, ordered_dict: Mapping[str, object]) -> object: ...


@contextmanager
def progress_bar(description: str | None, total: int, *, unit: str = "it") -> Iterator[Bar]:
    """A bar that is shown during the block. description: None: no bar is shown."""
    is_shown = description is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm if is_shown else None
    except ModuleNotFoundError:
        tqdm = None
    if tqdm is None:
        yield Bar(total)
    else:
        with tqdm(total=total, desc=description, unit=unit) as bar:
            yield bar
