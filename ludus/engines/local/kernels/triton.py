"""Paged attention on a CUDA card, by the kernels in `ludus/kernels/paged.py`, which Triton compiles.

Knows: what the kernels read of a step, and where it lies.  Knows not: sequences, models, graphs.
Shapes: S rows of a step, T tiles, H heads, Hk heads of keys, D width of a head.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch
from ludus.kernels.library import AttentionRule, dense_last

_TILE_ROWS = 64
"""Queries of all heads in a tile: as many as a product on a card works on at once. In fp32, which is for checks and for
small models, products are made of scalars: tiles of 16 compile in a fifth of the time."""
_SMALLEST_PRODUCT = 16
_KEYS = 64  # read at a time: four pages
_WIDE_HEAD_BYTES = (
    256  # keys and values of wider heads fill the memory that programs share, so they come two pages at once
)


def tile_queries(num_heads: int, num_kv_heads: int, dtype: torch.dtype) -> int:
    """Neighbouring tokens of one sequence that share a tile."""
    rows = _SMALLEST_PRODUCT if dtype == torch.float32 else _TILE_ROWS
    return max(1, rows // (num_heads // num_kv_heads))


class StepTables:
    """What the kernels read of a step, in tensors that stay where they are and are filled again for each step."""

    def __init__(self, num_rows: int, num_tiles: int, *, queries: int, page_ids: Tensor) -> None:
        """queries: most rows of a tile.  page_ids: has the page tables; several StepTables may share it."""
        self.queries = queries
        self.page_ids = page_ids
        self.num_rows, self.num_tiles = num_rows, num_tiles
        # one tensor, so that a step is one copy: ids, positions and slots of rows, then four numbers for each tile
        self._numbers = torch.zeros(3 * num_rows + 4 * num_tiles, dtype=torch.int32, device=page_ids.device)
        rows, tiles = self._numbers[: 3 * num_rows], self._numbers[3 * num_rows :]
        self.ids_S, self.positions_S, self.slots_S = rows.view(3, num_rows).unbind()
        self.first_row_T, self.num_rows_T, self.table_start_T, self.num_seen_T = tiles.view(4, num_tiles).unbind()

    def __repr__(self) -> str:
        return f"<StepTables of {self.num_rows} rows, {self.num_tiles} tiles>"

    def fill(
        self, ids: Sequence[int], positions: Sequence[int], chunks: RaggedBatch, table_starts: Sequence[int]
    ) -> None:
        """A step of at most as many rows and tiles; rows that fill it up are stored nowhere and attend to nothing.

        table_starts: where in `page_ids` the table of each run begins.
        """
        tiles: list[tuple[int, int, int, int]] = []
        row = 0
        for chunk, table in zip(chunks.chunks, table_starts, strict=True):
            for at in range(0, chunk.num_tokens, self.queries):
                num_rows = min(self.queries, chunk.num_tokens - at)
                tiles.append((row + at, num_rows, table, chunk.start + at + 1))
            row += chunk.num_tokens
        assert row <= self.num_rows and len(tiles) <= self.num_tiles, f"{row} rows, {len(tiles)} tiles in {self!r}"
        filling, rest = self.num_rows - row, [0] * (self.num_tiles - len(tiles))
        rows = [[*each, *[filler] * filling] for each, filler in ((ids, 0), (positions, 0), (chunks.slots, -1))]
        columns = [[*column, *rest] for column in zip(*tiles, strict=True)]
        numbers = torch.tensor([number for part in (*rows, *columns) for number in part], dtype=torch.int32)
        self._numbers.copy_(numbers)


class TritonKernel:
    """The kernel for CUDA cards. Not thread-safe: the tables of the step at hand belong to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chunks: RaggedBatch | None = None
        self._tables: StepTables | None = None

    def __repr__(self) -> str:
        return f"<TritonKernel on {self._device}>"

    @staticmethod
    def unsupported_reason(weight: Tensor) -> str | None:
        """Why the kernel cannot serve a model with such weights. None: it can."""
        if weight.device.type != "cuda":
            return f"it runs on a CUDA card, and the model is on {weight.device}"
        if importlib.util.find_spec("triton") is None:
            return "it is compiled with triton, which is not installed; it comes with torch for CUDA"
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, chunks: RaggedBatch, rule: AttentionRule, out: Tensor
    ) -> None:
        if self._chunks is not chunks:
            queries = tile_queries(q.shape[0], k.shape[0], cache.dtype)
            num_tiles = sum(-(-chunk.num_tokens // queries) for chunk in chunks.chunks)
            page_ids = chunks.page_ids.to(self._device)
            self._tables = StepTables(len(chunks), num_tiles, queries=queries, page_ids=page_ids)
            self._tables.fill([0] * len(chunks), [0] * len(chunks), chunks, chunks.table_starts)
            self._chunks = chunks
        assert self._tables is not None, "made for these chunks"
        attend_with(self._tables, q, k, v, cache, rule=rule, out=out)


def attend_with(
    tables: StepTables, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, rule: AttentionRule, out: Tensor
) -> None:
    """Write keys and values (Hk, S, D) of all rows into the cache, then attend with queries (H, S, D).

    Modifies `cache`, which is that of one layer, and `out` (S, H, D), contiguous.
    """
    kernels = _kernels()
    q, k, v = dense_last(q), dense_last(k), dense_last(v)
    (num_heads, num_rows, head_dim), num_kv_heads = q.shape, k.shape[0]
    group, token_stride = num_heads // num_kv_heads, 2 * num_kv_heads * head_dim
    padded = max(_SMALLEST_PRODUCT, 1 << (head_dim - 1).bit_length())
    kernels.store_rows[(num_rows, num_kv_heads)](
        k, v, cache, tables.slots_S, k.stride(0), k.stride(1), v.stride(0), v.stride(1), token_stride,
        D=head_dim, D_PADDED=padded,
    )  # fmt: skip
    is_wide = padded * cache.element_size() > _WIDE_HEAD_BYTES
    kernels.attend_tiles[(tables.num_tiles, num_kv_heads)](
        q, out, cache, rule.sinks, tables.page_ids, tables.first_row_T, tables.num_rows_T, tables.table_start_T,
        tables.num_seen_T, q.stride(0), q.stride(1), num_heads * head_dim, token_stride, rule.scale,
        rule.softcap or 1.0, GROUP=group, D=head_dim, D_PADDED=padded, PAGE_TOKENS=PAGE_TOKENS,
        TILE_ROWS=max(_SMALLEST_PRODUCT, 1 << (tables.queries * group - 1).bit_length()),
        KEYS=_KEYS // 2 if is_wide else _KEYS, num_stages=2,
        WINDOW=rule.window or 0, CAPPED=rule.softcap is not None, HAS_SINKS=rule.sinks is not None,
        PRECISION="ieee" if cache.dtype == torch.float32 else "tf32",
    )  # fmt: skip


def _kernels() -> ModuleType:
    from ludus.kernels import paged  # triton comes with torch for CUDA, and is not needed elsewhere

    return paged
