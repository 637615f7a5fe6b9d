"""A new version of an engine's weights in which no weight changes.

Knows: the interface of new weights.  Knows not: engines, models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class NoNewWeights:
    """Publishing it clears the prefix cache, and calls `work` at the point where an engine writes shared tensors."""

    work: Callable[[], object] = _nothing

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        self.work()
