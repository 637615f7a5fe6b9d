"""Paged attention in Triton, for CUDA cards: stores keys and values in pages, and attends with tiles of queries.

Knows: page tables, tiles.  Knows not: steps, sequences, models, graphs.

A page has the layout [PAGE_TOKENS][Hk][2][D]: for each token and key head the key, then the value. A tile is a few
consecutive queries of one sequence; all query heads that share a key head are rows of one product, so that a decoding
token reads each key once. A tile visits its keys in one order, and is not split over several programs: the result of a
row does not depend on other rows of the step.

Source of the online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867)
alg. 3; of its use in tiles: FlashAttention (arXiv 2205.14135) alg. 1.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# A kernel's arguments have types of Triton's own: pointers, numbers, constants that it is compiled for.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_rows(
    k, v, cache, slots,
    k_head_stride, k_row_stride, v_head_stride, v_row_stride, token_stride,
    D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """Write one row's key and value of one head to its slot; rows with slot -1 are skipped. Grid: rows, key heads."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    d = tl.arange(0, D_PADDED)
    inside = d < D
    at = cache + slot * token_stride + head * 2 * D + d
    tl.store(at, tl.load(k + head * k_head_stride + row * k_row_stride + d, mask=inside), mask=inside)
    tl.store(at + D, tl.load(v + head * v_head_stride + row * v_row_stride + d, mask=inside), mask=inside)


@triton.jit
def attend_tiles(
    q, out, cache, sinks, page_ids, first_row, num_rows, table_start, num_seen,
    q_head_stride, q_row_stride, out_row_stride, token_stride, scale, softcap,
    GROUP: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, PAGE_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of one tile with the query heads of one key head. Grid: tiles, key heads.

    num_rows: rows of each tile; 0: unused tile.  num_seen: tokens up to and including its first row.
    table_start: index in page_ids of its sequence's first page.  WINDOW: 0: none.  sinks: one score a query head.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    rows = tl.load(num_rows + tile)
    if rows == 0:
        return
    first, table, seen = tl.load(first_row + tile), tl.load(table_start + tile), tl.load(num_seen + tile)
    m, d = tl.arange(0, TILE_ROWS), tl.arange(0, D_PADDED)
    query, head, inside = m // GROUP, kv_head * GROUP + m % GROUP, d < D
    real = (query < rows)[:, None] & inside[None, :]
    row = (first + query).to(tl.int64)
    queries = tl.load(q + (head * q_head_stride + row * q_row_stride)[:, None] + d[None, :], mask=real, other=0.0)
    seen_M = seen + query
    end = seen + rows - 1
    best = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    if HAS_SINKS:  # start as if a key with that score and a value of zeros had been processed
        best = tl.load(sinks + head, mask=query < rows, other=0.0)
        total += 1.0
    found = tl.zeros((TILE_ROWS, D_PADDED), tl.float32)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(seen - WINDOW, 0) // KEYS * KEYS
    for begin in range(start, end, KEYS):
        key = begin + tl.arange(0, KEYS)
        there = key < end
        page = tl.load(page_ids + table + key // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
        at = cache + (page * PAGE_TOKENS + key % PAGE_TOKENS) * token_stride + kv_head * 2 * D
        held = there[:, None] & inside[None, :]
        keys = tl.load(at[:, None] + d[None, :], mask=held, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        if CAPPED:
            # tanh computed from the sigmoid, which neither overflows nor needs a library
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        visible = key[None, :] < seen_M[:, None]
        if WINDOW > 0:
            visible = visible & (key[None, :] >= seen_M[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        # for a row without keys so far: avoids -inf - (-inf), which is NaN
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp(scores - base[:, None])
        kept = tl.exp(best - base)
        values = tl.load(at[:, None] + D + d[None, :], mask=held, other=0.0)
        found = found * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
        total = total * kept + tl.sum(weights, 1)
        best = highest
    result = found / tl.where(total == 0.0, 1.0, total)[:, None]
    place = out + (row * out_row_stride + head * D)[:, None] + d[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=real)
