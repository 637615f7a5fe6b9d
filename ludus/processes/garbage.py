"""Pauses garbage collection while large libraries are imported.

Knows: the collector.  Knows not: what is loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Pause the cyclic garbage collector within the block.

    Importing torch and transformers creates some hundred thousand permanent objects, and every collection scans those
    that exist so far, which takes a third of the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
