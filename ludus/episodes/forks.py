"""Why token paths forked: a count for each reason and one example, kept for a person to look at.

Knows: reasons and two texts.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ludus.text.prefixes import around_difference
from ludus.types import ForkReason

# Enough to see a whole turn header and a line of content on each side of the first difference.
_CONTEXT_CHARS = 80


@dataclass(frozen=True, slots=True)
class ForkExample:
    """Where the text of a new prompt left the text of the turn it follows."""

    turn_id: str
    follows: str
    seen: str
    """What the model saw and sampled, around the first difference."""
    rendered: str
    """What the template shows there now."""

    @classmethod
    def around(cls, *, turn_id: str, follows: str, seen: str, rendered: str) -> ForkExample:
        """The example with both texts cut to the surroundings of their first difference."""
        return cls(turn_id, follows, *around_difference(seen, rendered, _CONTEXT_CHARS))


class ForkLog:
    """Counts forks by reason; keeps the first example of each. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[ForkReason, int] = {}
        self._examples: dict[ForkReason, ForkExample] = {}

    def add(self, reason: ForkReason, make_example: Callable[[], ForkExample]) -> None:
        """Counts one fork; `make_example` is called for the first one of its reason."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        if reason not in self._examples:
            self._examples[reason] = make_example()

    @property
    def counts(self) -> Mapping[ForkReason, int]:
        return MappingProxyType(dict(self._counts))

    @property
    def examples(self) -> Mapping[ForkReason, ForkExample]:
        return MappingProxyType(dict(self._examples))
