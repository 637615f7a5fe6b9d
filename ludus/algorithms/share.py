"""Distributes rows over ranks that compute in step: each rank has one row in every round.

Knows: rows and their lengths.  Knows not: processes, tensors.
Invariants: every row is in exactly one share; all shares have the same number of rows, filled up with rows without
targets that cost next to nothing; no other choice of rounds has a smaller sum of their longest rows.

Ranks that share a layer's weights wait for each other in every layer, so a round takes as long as its longest row.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.algorithms.pack import PackedRow

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
