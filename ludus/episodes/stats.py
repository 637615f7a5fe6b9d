"""What a session has come to: its size, and why its token paths forked, with one example kept for a person to look at.

Knows: counts, reasons and two texts.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ludus.text.prefix_memo import around_difference
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


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has come to so far."""

    num_turns: int
    num_tokens: int
    """Sampled tokens, those of answers in flight included."""
    num_running: int
    """Answers in flight."""
    num_nodes: int
    """Nodes of the token graph."""
    num_encoded_chars: int
    """Characters of prompts that were tokenized. Without forks they are those of the rendered conversation."""
    num_rendered_messages: int
    """Messages that went through the chat template."""
    forks: Mapping[ForkReason, int]
    fork_examples: Mapping[ForkReason, ForkExample]
    """The first fork of each reason."""
    refused: Mapping[str, int]
    """Requests that got no answer, by the code of their error."""
