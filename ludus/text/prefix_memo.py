"""What was worked out for the items of a list, found again when a longer list begins with them.

Knows: lists and equality.  Knows not: what items are.
A client sends the whole history with every turn; what grows with each turn must then be the comparison alone, which
runs without a line of Python for each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

NUM_KEPT = 8  # conversations that go on side by side in one session: an agent and some sub-agents


class PrefixMemo(Generic[Item, Value]):
    """The latest lists of one session with a value for each item. Not thread-safe.

    Items that are equal must be worth the same value; they must not change.
    """

    def __init__(self) -> None:
        self._lists: list[tuple[list[Item], list[Value]]] = []  # the latest last

    def known(self, items: Sequence[Item]) -> list[Value]:
        """A new list: the values of as many of the first `items` as some list that was remembered began with."""
        sent = list(items)
        best: list[Value] = []
        for old, values in reversed(self._lists):
            num_shared = num_same(old, sent)
            if num_shared > len(best):
                best = values[:num_shared]
        return best

    def remember(self, items: Sequence[Item], values: Sequence[Value]) -> None:
        """Keeps the value of every item; the longest unused list is forgotten, and those that these go on with."""
        new, others = list(items), []
        for old, old_values in self._lists:
            if old == new[: len(old)]:
                new[: len(old)] = old  # equal items once: what has just been decoded again can be let go
            else:
                others.append((old, old_values))
        self._lists = [*others, (new, list(values))][-NUM_KEPT:]


def num_same(old: Sequence[object], new: Sequence[object]) -> int:
    """Length of the longest list, or text, that both begin with."""
    shorter = min(len(old), len(new))
    if old[:shorter] == new[:shorter]:
        return shorter
    return next(idx for idx in range(shorter) if old[idx] != new[idx])


def around_difference(old: str, new: str, num_chars: int) -> tuple[str, str]:
    """Both texts, cut to so many characters on each side of where they part."""
    at = num_same(old, new)
    cut = slice(max(0, at - num_chars), at + num_chars)
    return old[cut], new[cut]
