"""What a kernel of paged attention does: the AttentionKernel protocol, and the runs of tokens it works on.

Knows: tensors, page numbers.  Knows not: sequences, models.
Shapes: S tokens of a step, H heads, Hk heads of keys and values, D width of a head, P pages.

The cache of one layer has the shape (P, Hk, 2, PAGE_TOKENS * D): keys, then values. How a kernel lays out the
tokens inside a page is its own affair, so only the kernel that stored a page can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from ludus.kernels.library import AttentionRule

# A page fills one 512-bit register per pair of values, and wastes at most 15 tokens of a sequence.
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Neighbouring tokens of one sequence in a step."""

    start: int
    """Position of the first of them in its sequence."""
    num_tokens: int
    pages: Sequence[int]
    """The sequence's page table; it may reach beyond the run."""


class RaggedBatch:
    """All tokens of a step: run after run, one row for each token."""

    def __init__(self, chunks: Sequence[SequenceChunk]) -> None:
        self.chunks = tuple(chunks)
        self._num_tokens = sum(chunk.num_tokens for chunk in self.chunks)

    # Not every kernel reads all of them, and tables of many sequences take a while to be made into one.

    @cached_property
    def page_ids(self) -> Tensor:
        """Tables of all runs, one after the other, int32."""
        return torch.tensor([page for chunk in self.chunks for page in chunk.pages], dtype=torch.int32)

    @cached_property
    def table_starts(self) -> list[int]:
        """Where in `page_ids` the table of each run begins."""
        return list(accumulate((len(chunk.pages) for chunk in self.chunks[:-1]), initial=0))

    @cached_property
    def table_start_S(self) -> Tensor:  # noqa: N802  a shape is a suffix
        """The same for each row, int64."""
        starts = zip(self.chunks, self.table_starts, strict=False)
        return torch.tensor([start for chunk, start in starts for _ in range(chunk.num_tokens)])

    @cached_property
    def num_seen_S(self) -> Tensor:  # noqa: N802  a shape is a suffix
        """Tokens before and at a row's own, int32."""
        seen = [at + 1 for chunk in self.chunks for at in range(chunk.start, chunk.start + chunk.num_tokens)]
        return torch.tensor(seen, dtype=torch.int32)

    @cached_property
    def slots(self) -> list[int]:
        """Where keys and values of a row go: its page * PAGE_TOKENS + its offset there."""
        return [slot for chunk in self.chunks for slot in _slots(chunk)]

    @cached_property
    def slots_S(self) -> Tensor:  # noqa: N802  a shape is a suffix
        """The same, int64."""
        return torch.tensor(self.slots)

    def __len__(self) -> int:
        return self._num_tokens

    def __repr__(self) -> str:
        return f"<RaggedBatch {len(self.chunks)} with {len(self)} tokens>"


class AttentionKernel(Protocol):
    """Stores keys and values into pages and attends to them."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, chunks: RaggedBatch, rule: AttentionRule, out: Tensor
    ) -> None:
        """Write keys and values (Hk, S, D) of all rows, then attend with queries (H, S, D) to all that is stored.

        Modifies `cache`, which is that of one layer, and `out` (S, H, D). All layers of a step bring the same `chunks`.
        """


def _slots(chunk: SequenceChunk) -> list[int]:
    positions = range(chunk.start, chunk.start + chunk.num_tokens)
    return [chunk.pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS for at in positions]
