"""A version of weights that an engine can be given where no weight is new.

Knows: what engines ask of new weights.  Knows not: engines, models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class NoNewWeights:
    """Publishing it empties the cache of prompts, and calls `work` where an engine writes shared tensors."""

    work: Callable[[], object] = _nothing

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        self.work()
