"""Remembers values computed for the items of a list, for reuse when a longer list begins with the same items.

Knows: lists and equality.  Knows not: what items are.
A client sends the whole history with every turn. Only the comparison of histories may grow with every turn, and it
runs without a line of Python per item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

NUM_KEPT = 8  # conversations that go on side by side in one session: an agent and some sub-agents


class PrefixMemo(Generic[Item, Value]):
    """The latest lists of one session, with a value for each item. Not thread-safe.

    Equal items must have equal values; items must not change.
    """

    def __init__(self) -> None:
        self._lists: list[tuple[list[Item], list[Value]]] = []  # the latest last

    def known(self, items: Sequence[Item]) -> list[Value]:
        """The values of the longest prefix of `items` that a remembered list begins with, as a new list."""
        sent = list(items)
        best: list[Value] = []
        for old, values in reversed(self._lists):
            num_shared = num_same(old, sent)
            if num_shared > len(best):
                best = values[:num_shared]
        return best

    def remember(self, items: Sequence[Item], values: Sequence[Value]) -> None:
        """Remember the value of every item, in place of a list that `items` continue; the least recently used one is
        forgotten."""
        new, others = list(items), []
        for old, old_values in self._lists:
            if old == new[: len(old)]:
                new[: len(old)] = old  # equal items once: what has just been decoded again can be let go
            else:
                others.append((old, old_values))
        self._lists = [*others, (new, list(values))][-NUM_KEPT:]


def num_same(old: Sequence[object], new: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(old), len(new))
    if old[:shorter] == new[:shorter]:
        return shorter
    return next(idx for idx in range(shorter) if old[idx] != new[idx])


def around_difference(old: str, new: str, num_chars: int) -> tuple[str, str]:
    """Both texts, cut to `num_chars` characters on each side of their first difference."""
    at = num_same(old, new)
    cut = slice(max(0, at - num_chars), at + num_chars)
    return old[cut], new[cut]
