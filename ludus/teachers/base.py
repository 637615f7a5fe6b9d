"""The Scorer protocol, between the tokens of a step and whatever says how likely they are.

Knows: token ids.  Knows not: turns, episodes, models, URLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScoredPath:
    """Tokens from the first of a prompt on, and which of them are to be scored."""

    token_ids: tuple[int, ...]
    wanted: tuple[int, ...]
    """Indices into `token_ids`, rising, each at least 1: the first token has no predictor."""


class Scorer(Protocol):
    """Says how likely tokens are. Used by one event loop."""

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        """Of each path the logprob of each wanted token given all before it, at temperature 1.

        Raises BackendError if it cannot be asked, UserError for a path that it cannot take.
        """

    async def close(self) -> None:
        """Give back what it holds. Closing twice is allowed."""
