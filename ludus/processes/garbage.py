"""Python's searches for garbage, put off while much is loaded that stays.

Knows: the collector.  Knows not: what is loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Within the block nothing searches for objects that only hold one another.

    torch and transformers make some hundred thousand that all stay, and each search looks at those that there are by
    then: a third of the time in which they are imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
