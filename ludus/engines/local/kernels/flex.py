"""Paged attention on a CUDA card: torch's flex_attention over the pages as they lie in memory.

Knows: page tables, masks by block.  Knows not: sequences, models, graphs.
Shapes: S rows of a step, N rows that decode, T page tables, P pages, H heads, Hk heads of keys, D width of a head.

A page holds its tokens in rows, [PAGE_TOKENS][Hk][2][D], so that a layer's pages are one long array of keys with a
single stride. A query reads the pages that its block lists, and a rule hides what it must not see of them:

    key j lies in page j // 16, which is page logical_TP[t, j // 16] of table t (-1: none of its pages),
    so its position in that sequence is 16 * logical + j % 16, seen if it is below the row's num_seen

Rows that decode are the batch; they are filled up to powers of two with repetitions of the first, because a kernel
is compiled for each size. Longer runs stand one after the other in one ragged row of queries.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions, flex_attention

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch, SequenceChunk
from ludus.kernels.library import AttentionRule
from ludus.models.flex import QUERY_BLOCK, MaskRule, ScoreRule, cap_scores, compiled

# A tile of keys is a page: the pages of a sequence lie anywhere.
_TILE: FlexKernelOptions = {"BLOCK_N": PAGE_TOKENS}
# The kernel for few queries takes a power of two of heads a key head and few rows; ragged rows are neither.
_RAGGED_TILE: FlexKernelOptions = {"BLOCK_N": PAGE_TOKENS, "FORCE_USE_FLEX_ATTENTION": True}
_SMALLEST_HEAD = 16  # of torch's kernels


class DecodeTables:
    """What up to `size` decoding rows see, in tensors that stay where they are and are filled again for each step."""

    def __init__(self, size: int, *, num_pages: int, device: torch.device) -> None:
        self.size = size
        self.slots_N = torch.zeros(size, dtype=torch.int64, device=device)
        """Where keys and values of a row go."""
        self._start_N = torch.zeros(size, dtype=torch.int64, device=device)
        self._num_seen_N = torch.ones(size, dtype=torch.int32, device=device)
        self._logical_NP = torch.full((size, num_pages + 1), -1, dtype=torch.int32, device=device)
        self._page_ids = torch.zeros(1, dtype=torch.int64, device=device)
        self._width = 0
        """Pages of the longest sequence."""
        self._masks: dict[int | None, BlockMask] = {}

    def __repr__(self) -> str:
        return f"<DecodeTables of {self.size} rows, {self._logical_NP.shape[1] - 1} pages>"

    def fill(self, chunks: RaggedBatch, rows_N: Tensor) -> None:
        """Rows `rows_N` of a step, at most `size`, each the last token that its sequence has."""
        rows_N = torch.cat([rows_N, rows_N[:1].expand(self.size - len(rows_N))])
        self._page_ids = chunks.page_ids.to(self.slots_N.device, torch.int64)
        self.slots_N.copy_(chunks.slots_S[rows_N])
        self._start_N.copy_(chunks.table_start_S[rows_N])
        self._num_seen_N.copy_(chunks.num_seen_S[rows_N])
        self._width = -(-int(chunks.num_seen_S[rows_N].max()) // PAGE_TOKENS)
        num_held_N = -(-self._num_seen_N // PAGE_TOKENS)
        _fill_logical(self._logical_NP, self._page_ids, self._start_N, num_held_N, self._width)
        for window in self._masks:
            self._fill_mask(window)

    def mask(self, window: int | None) -> BlockMask:
        """Which pages each row reads, and what it sees of them. Shape (size, 1, 1 query, all keys)."""
        if window not in self._masks:
            num_pages = self._logical_NP.shape[1] - 1
            shape = (self.size, 1, 1)
            self._masks[window] = BlockMask.from_kv_blocks(
                self._num_seen_N.new_zeros(shape),
                self._num_seen_N.new_zeros((*shape, num_pages)),
                BLOCK_SIZE=(QUERY_BLOCK, PAGE_TOKENS),
                mask_mod=_decode_rule(self._logical_NP, self._num_seen_N, window),
                seq_lengths=(1, num_pages * PAGE_TOKENS),
                compute_q_blocks=False,
            )
            self._fill_mask(window)
        return self._masks[window]

    def _fill_mask(self, window: int | None) -> None:
        mask = self._masks[window]
        seen_N = self._num_seen_N
        first_N = torch.zeros_like(seen_N) if window is None else (seen_N - window).clamp_(min=0) // PAGE_TOKENS
        num_pages_N = -(-self._num_seen_N // PAGE_TOKENS) - first_N
        at_NW = self._start_N[:, None] + first_N[:, None] + torch.arange(self._width, device=first_N.device)
        mask.kv_num_blocks[:, 0, 0] = num_pages_N
        # what stands beyond a row's own pages is not read
        mask.kv_indices[:, 0, 0, : self._width] = self._page_ids[at_NW.clamp_(max=len(self._page_ids) - 1)].int()


class _Ragged:
    """What the rows of longer runs see."""

    def __init__(self, chunks: Sequence[SequenceChunk], *, num_pages: int, device: torch.device) -> None:
        self._chunks = chunks
        self._num_pages = num_pages
        tables = RaggedBatch(chunks)
        counts = torch.tensor([chunk.num_tokens for chunk in chunks])
        last_rows_T = counts.cumsum(0) - 1
        self._num_seen_S = tables.num_seen_S.to(device)
        self._table_S = torch.arange(len(chunks)).repeat_interleave(counts).to(device)
        self._logical_TP = torch.full((len(chunks), num_pages + 1), -1, dtype=torch.int32, device=device)
        num_held_T = -(-tables.num_seen_S[last_rows_T] // PAGE_TOKENS)
        _fill_logical(
            self._logical_TP,
            tables.page_ids.to(device, torch.int64),
            tables.table_start_S[last_rows_T].to(device),
            num_held_T.to(device),
            int(num_held_T.max()),
        )
        self._masks: dict[int | None, BlockMask] = {}

    def mask(self, window: int | None) -> BlockMask:
        """Which pages each block of rows reads, and what each row sees of them. Shape (1, 1, S queries, all keys)."""
        if window not in self._masks:
            device = self._num_seen_S.device
            lists = block_pages(self._chunks, window)
            indices = torch.zeros(len(lists), self._num_pages, dtype=torch.int32)
            for row, pages in enumerate(lists):
                indices[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
            num_pages = torch.tensor([len(pages) for pages in lists], dtype=torch.int32)
            self._masks[window] = BlockMask.from_kv_blocks(
                num_pages.to(device)[None, None],
                indices.to(device)[None, None],
                BLOCK_SIZE=(QUERY_BLOCK, PAGE_TOKENS),
                mask_mod=_ragged_rule(self._logical_TP, self._table_S, self._num_seen_S, window),
                seq_lengths=(len(self._num_seen_S), self._num_pages * PAGE_TOKENS),
                compute_q_blocks=False,
            )
        return self._masks[window]


class _Step:
    """A step's rows, sorted into those that decode and longer runs; made once and used by every layer."""

    def __init__(
        self, chunks: RaggedBatch, *, num_pages: int, tables: Callable[[int], DecodeTables], device: torch.device
    ):
        self.chunks = chunks
        self.slots_S = chunks.slots_S.to(device)
        singles: list[int] = []
        longer: list[int] = []
        at = 0
        for chunk in chunks.chunks:
            (singles if chunk.num_tokens == 1 else longer).extend(range(at, at + chunk.num_tokens))
            at += chunk.num_tokens
        self.num_singles = len(singles)
        self.tables = tables(padded_size(len(singles))) if singles else None
        """None: no row decodes."""
        if self.tables is not None:
            self.tables.fill(chunks, torch.tensor(singles))
            singles += singles[:1] * (self.tables.size - len(singles))
        self.single_rows = torch.tensor(singles, dtype=torch.int64, device=device)
        self.longer_rows = torch.tensor(longer, dtype=torch.int64, device=device)
        longer_chunks = [chunk for chunk in chunks.chunks if chunk.num_tokens > 1]
        self.ragged = _Ragged(longer_chunks, num_pages=num_pages, device=device) if longer_chunks else None
        """None: every row decodes."""


class FlexKernel:
    """The kernel for CUDA cards. Not thread-safe: the tables of the step at hand belong to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._decode = compiled(_attend_decode, device, by_size=True)
        self._ragged = compiled(_attend_ragged, device, by_size=False)
        self._tables: dict[tuple[int, int], DecodeTables] = {}
        self._step: _Step | None = None

    def __repr__(self) -> str:
        return f"<FlexKernel on {self._device}>"

    @staticmethod
    def unsupported_reason(weight: Tensor, head_dim: int) -> str | None:
        """Why the kernel cannot serve such a model. None: it can."""
        if weight.device.type != "cuda":
            return f"it runs on a CUDA card, and the model is on {weight.device}"
        if head_dim < _SMALLEST_HEAD:
            return f"it takes heads of {_SMALLEST_HEAD} and more dimensions, and the model has {head_dim}"
        if importlib.util.find_spec("triton") is None:
            return "torch compiles it with triton, which is not installed"
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, chunks: RaggedBatch, rule: AttentionRule, out: Tensor
    ) -> None:
        step = self._step_of(chunks, cache)
        store_rows(cache, k, v, step.slots_S)
        if step.tables is not None:
            rows = step.single_rows
            found = self.attend_decoding(q[:, rows].transpose(0, 1), cache, step.tables, rule)
            out[rows[: step.num_singles]] = found[: step.num_singles]
        if step.ragged is not None:
            keys, values = _token_views(cache, q.shape[2])
            mask, score = step.ragged.mask(rule.window), cap_scores(rule.softcap)
            found = self._ragged(q[None, :, step.longer_rows], keys, values, mask, score, rule.scale)
            out[step.longer_rows] = found[0].transpose(0, 1)

    def attend_decoding(self, q_NHD: Tensor, cache: Tensor, tables: DecodeTables, rule: AttentionRule) -> Tensor:
        """Attention of one query a sequence, shape (N, H, D); N is the size of `tables`."""
        keys, values = _token_views(cache, q_NHD.shape[2])
        mask, score = tables.mask(rule.window), cap_scores(rule.softcap)
        return self._decode(q_NHD[:, :, None], keys, values, mask, score, rule.scale)[:, :, 0]

    def tables(self, size: int, *, num_pages: int) -> DecodeTables:
        """The tables for `size` rows; the next step that decodes as many fills the same ones."""
        key = (size, num_pages)
        if key not in self._tables:
            self._tables[key] = DecodeTables(size, num_pages=num_pages, device=self._device)
        return self._tables[key]

    def _step_of(self, chunks: RaggedBatch, cache: Tensor) -> _Step:
        if self._step is None or self._step.chunks is not chunks:
            num_pages = cache.shape[0]
            tables = partial(self.tables, num_pages=num_pages)
            self._step = _Step(chunks, num_pages=num_pages, tables=tables, device=self._device)
        return self._step


def store_rows(cache: Tensor, k: Tensor, v: Tensor, slots_S: Tensor) -> None:
    """Write keys and values (Hk, S, D) to their slots. Modifies `cache`."""
    keys, values = _token_views(cache, k.shape[2])
    # rows that only fill up a batch repeat another one, slot and all
    keys[0].transpose(0, 1)[slots_S] = k.transpose(0, 1)
    values[0].transpose(0, 1)[slots_S] = v.transpose(0, 1)


def padded_size(num_rows: int) -> int:
    """The smallest power of two that holds `num_rows`."""
    return 1 << (num_rows - 1).bit_length()


def block_pages(chunks: Sequence[SequenceChunk], window: int | None) -> list[list[int]]:
    """For each QUERY_BLOCK rows of the runs, laid one after the other, the pages that any of them sees, each once."""
    lists: list[set[int]] = [set() for _ in range(-(-sum(chunk.num_tokens for chunk in chunks) // QUERY_BLOCK))]
    row = 0
    for chunk in chunks:
        start, end = chunk.start, chunk.start + chunk.num_tokens
        while start < end:
            next_start = min(end, start + QUERY_BLOCK - row % QUERY_BLOCK)
            first = 0 if window is None else max(0, start + 1 - window) // PAGE_TOKENS
            lists[row // QUERY_BLOCK].update(chunk.pages[first : -(-next_start // PAGE_TOKENS)])
            row += next_start - start
            start = next_start
    return [sorted(pages) for pages in lists]


def _token_views(cache: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """All keys and all values of a layer, both (1, Hk, P * PAGE_TOKENS, D), seen in the cache itself."""
    num_pages, num_kv_heads = cache.shape[:2]
    tokens = cache.view(num_pages * PAGE_TOKENS, num_kv_heads, 2, head_dim).permute(2, 1, 0, 3)
    return tokens[:1], tokens[1:]


def _fill_logical(logical_TP: Tensor, page_ids: Tensor, start_T: Tensor, num_held_T: Tensor, width: int) -> None:
    """Turn page tables round: per table and physical page, which page of the sequence it is, or -1.

    page_ids: tables one after the other, each from start_T on; num_held_T: pages of each, none more than `width`.
    Modifies `logical_TP`, whose last column takes what is no page.
    """
    at_W = torch.arange(width, device=page_ids.device)
    is_held_TW = at_W < num_held_T[:, None]
    pages_TW = page_ids[(start_T[:, None] + at_W).clamp_(max=len(page_ids) - 1)]
    pages_TW = torch.where(is_held_TW, pages_TW, logical_TP.shape[1] - 1)
    logical_TP.fill_(-1)
    logical_TP.scatter_(1, pages_TW, at_W.int().expand(pages_TW.shape))


def _is_seen(page: Tensor, key: Tensor, num_seen: Tensor, window: int | None) -> Tensor:
    position = page * PAGE_TOKENS + key % PAGE_TOKENS
    seen = (page >= 0) & (position < num_seen)
    return seen if window is None else seen & (position >= num_seen - window)


def _decode_rule(logical_NP: Tensor, num_seen_N: Tensor, window: int | None) -> MaskRule:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del head, query
        return _is_seen(logical_NP[batch, key // PAGE_TOKENS], key, num_seen_N[batch], window)

    return sees


def _ragged_rule(logical_TP: Tensor, table_S: Tensor, num_seen_S: Tensor, window: int | None) -> MaskRule:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        return _is_seen(logical_TP[table_S[query], key // PAGE_TOKENS], key, num_seen_S[query], window)

    return sees


def _attend_decode(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, score: ScoreRule | None, scale: float) -> Tensor:
    return flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=_TILE)


def _attend_ragged(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, score: ScoreRule | None, scale: float) -> Tensor:
    return flex_attention(
        q, k, v, score_mod=score, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=_RAGGED_TILE
    )
