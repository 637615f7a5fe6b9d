"""Distributes rows over ranks that compute in step: each rank has one row, or one part of a row, in every round.

Knows: rows and their lengths.  Knows not: processes, tensors.
Invariants: every row is in exactly one share; all shares have the same number of rows, filled up with rows without
targets that cost next to nothing; no other choice of rounds has a smaller sum of their longest rows. The parts of a row
have equally many tokens, and every target is in the part whose hidden state predicts it.

Ranks that share a layer's weights wait for each other in every layer, so a round takes as long as its longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from ludus.algorithms.pack import PackedRow

# Parts are whole blocks: half a block of padding on average, one token in sixteen of a row of 512.
TOKEN_BLOCK = 64
_OF_TOKENS = ("token_ids", "positions", "parents")

FILLER = PackedRow(
    token_ids=(0,),
    positions=(0,),
    parents=(-1,),
    source_idx=(),
    target_ids=(),
    advantages=(),
    weights=(),
    logprobs=(),
    versions=(),
    temperatures=(),
    turns=(),
    episodes=(),
    groups=(),
    values=(),
    value_targets=(),
)
"""A row that trains nothing."""


def share_rows(rows: Sequence[PackedRow], num_shares: int) -> list[tuple[PackedRow, ...]]:
    """The rows of each share, the k-th row of each being those of round k; equal input gives equal shares."""
    by_length = sorted(rows, key=lambda row: -len(row.token_ids))
    rounds = [by_length[start : start + num_shares] for start in range(0, len(by_length), num_shares)]
    shares: list[list[PackedRow]] = [[] for _ in range(num_shares)]
    for number, members in enumerate(rounds):
        whole = [*members, *(FILLER for _ in range(num_shares - len(members)))]
        # every second round is reversed, so that no rank always has the longest row
        for share, row in zip(shares, whole if number % 2 == 0 else whole[::-1], strict=True):
            share.append(row)
    return [tuple(share) for share in shares]


@dataclass(frozen=True, slots=True)
class RowPart:
    """Which of several equal parts of every row this process computes."""

    index: int = 0
    count: int = 1
    together: int = 1
    """How many neighbouring parts are computed together in attention and MLPs (tensor parallelism)."""

    def span(self, num_tokens: int) -> slice:
        """The part's tokens in a row of `num_tokens`, which is padded at its end."""
        width = -(-num_tokens // (TOKEN_BLOCK * self.count)) * TOKEN_BLOCK
        return slice(self.index * width, (self.index + 1) * width)

    def joint_span(self, num_tokens: int) -> slice:
        """The tokens of all parts that are computed together with this one."""
        own, before = self.span(num_tokens), self.index % self.together
        width = own.stop - own.start
        return slice(own.start - before * width, own.start + (self.together - before) * width)

    def of(self, row: PackedRow) -> PackedRow:
        """All tokens of the row, with the part's targets alone."""
        if self.count == 1:
            return row
        span = self.span(len(row.token_ids))
        kept = [at for at, source in enumerate(row.source_idx) if span.start <= source < span.stop]
        columns = {field.name: getattr(row, field.name) for field in fields(row) if field.name not in _OF_TOKENS}
        of_targets = {name: each for name, each in columns.items() if isinstance(each, tuple) and each}
        return replace(row, **cast(Any, {name: tuple([each[at] for at in kept]) for name, each in of_targets.items()}))


WHOLE_ROW = RowPart()
