"""The Scorer protocol: computes logprobs of given tokens.

Knows: token ids.  Knows not: turns, episodes, models, URLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScoredPath:
    """A sequence of tokens, from the start of a prompt, and which of them to score."""

    token_ids: tuple[int, ...]
    wanted: tuple[int, ...]
    """Sorted indices into `token_ids`, each at least 1: the first token has no predictor."""


class Scorer(Protocol):
    """Computes logprobs of tokens. Used on one event loop."""

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        """For each path, the logprob of each wanted token given all tokens before it, at temperature 1.

        Raises BackendError if the scorer cannot be reached, UserError for a path that it cannot score.
        """

    async def close(self) -> None:
        """Free its resources. Closing twice is allowed."""
