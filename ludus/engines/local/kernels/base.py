"""What a kernel of paged attention does: the AttentionKernel protocol, and the runs of tokens it works on.

Knows: tensors, page numbers.  Knows not: sequences, models.
Shapes: S tokens of a step, H heads, Hk heads of keys and values, D width of a head, P pages.

The cache of one layer has the shape (P, Hk, 2, PAGE_TOKENS * D): keys, then values. How a kernel lays out the
tokens inside a page is its own affair, so only the kernel that stored a page can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        first_page = list(accumulate((len(chunk.pages) for chunk in chunks), initial=0))
        self.page_ids = torch.tensor([page for chunk in chunks for page in chunk.pages], dtype=torch.int32)
        """Tables of all runs, one after the other."""
        self.table_start_S = torch.tensor(
            [start for chunk, start in zip(chunks, first_page, strict=False) for _ in range(chunk.num_tokens)]
        )
        """Where in `page_ids` the table of a row begins, int64."""
        self.num_seen_S = torch.tensor(
            [at + 1 for chunk in chunks for at in range(chunk.start, chunk.start + chunk.num_tokens)], dtype=torch.int32
        )
        """Tokens before and at a row's own."""
        self.slots_S = torch.tensor([slot for chunk in chunks for slot in _slots(chunk)])
        """Where keys and values of a row go: its page * PAGE_TOKENS + its offset there, int64."""

    def __len__(self) -> int:
        return self.num_seen_S.shape[0]

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
