"""Metrics of many micro-batches as metrics of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.trainer.ranks import Ranks
from ludus.trainer.token_record import TokenRecord


class TokenMeans:
    """Combines means weighted by their numbers of tokens; for names that end in `_max` it keeps the largest value."""

    def __init__(self, tokens: TokenRecord | None = None) -> None:
        """tokens: also keeps the numbers of each token. None: they are not kept."""
        self.tokens = tokens
        self._sums: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self.num_tokens = 0

    def add(self, means: Mapping[str, float], num_tokens: int) -> None:
        for name, value in means.items():
            if name.endswith("_max"):
                self._largest[name] = max(value, self._largest.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value * num_tokens
                self._tokens[name] = self._tokens.get(name, 0) + num_tokens

    def add_sum(self, name: str, value: float) -> None:
        """Add to a value that is a sum over the batch, such as the loss."""
        self._totals[name] = self._totals.get(name, 0.0) + value

    def add_all(self, other: Mapping[str, Any]) -> None:
        """Add what another one collected, given its `parts`."""
        for name, value in other["sums"].items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._tokens[name] = self._tokens.get(name, 0) + other["tokens"][name]
        for name, value in other["largest"].items():
            self._largest[name] = max(value, self._largest.get(name, value))
        for name, value in other["totals"].items():
            self.add_sum(name, value)

    def parts(self) -> dict[str, Any]:
        """All that was collected, as JSON values."""
        return {"sums": self._sums, "tokens": self._tokens, "largest": self._largest, "totals": self._totals}

    def over(self, ranks: Ranks) -> dict[str, float]:
        """The result over all ranks, at rank 0. Every rank must call this."""
        whole = TokenMeans()
        for parts in ranks.gather(self.parts()):
            whole.add_all(parts)
        return whole.result()

    def result(self) -> dict[str, float]:
        means = {name: total / self._tokens[name] for name, total in self._sums.items()}
        return {**self._totals, **means, **self._largest}


_SUMS = ("train/loss", "critic/loss")
"""Over all minibatches, whose weights sum to their number."""


def epoch_metrics(epochs: Sequence[Mapping[str, float]], *, num_minibatches: int) -> dict[str, float]:
    """The metrics of a batch: those of its last epoch, and of each epoch before it as `NAME/epoch_1` and so on.

    epochs: what each epoch collected.
    """
    *earlier, last = [
        {name: value / num_minibatches if name in _SUMS else value for name, value in epoch.items()} for epoch in epochs
    ]
    before = {
        f"{name}/epoch_{number}": value
        for number, epoch in enumerate(earlier, 1)
        for name, value in epoch.items()
        if name != "train/tokens"  # the same ones each time
    }
    return {**last, **before}
