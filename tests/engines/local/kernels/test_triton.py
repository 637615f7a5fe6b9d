"""What a step writes down for the kernel; the kernel itself is in interpreted.py, and on a card in tests/gpu."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.triton import StepTables, tile_queries

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), min_size=1, max_size=6)


@given(runs=RUNS, queries=st.integers(1, 20), spare=st.integers(0, 9))
def test_tiles_cover_each_row_once(runs: list[tuple[int, int]], queries: int, spare: int) -> None:
    """Each row stands in one tile, which names its table and what it sees; the rest is none."""
    pages = iter(torch.randperm(500, generator=torch.Generator().manual_seed(1)).tolist())
    chunks = [
        SequenceChunk(start, num, [next(pages) for _ in range(-(-(start + num) // PAGE_TOKENS))]) for start, num in runs
    ]
    batch = RaggedBatch(chunks)
    num_tiles = sum(-(-num // queries) for _, num in runs)
    tables = StepTables(len(batch) + spare, num_tiles + spare, queries=queries, page_ids=batch.page_ids)
    for _ in range(2):  # what an earlier step has left does not stay
        tables.fill(list(range(100, 100 + len(batch))), batch.num_seen_S.tolist(), batch, batch.table_starts)
    rows = [(number, at) for number, (_, num) in enumerate(runs) for at in range(num)]
    seen = []
    for tile in range(num_tiles):
        first, num, table, num_seen = (
            int(each[tile]) for each in (tables.first_row_T, tables.num_rows_T, tables.table_start_T, tables.num_seen_T)
        )
        for row in range(first, first + num):
            number, at = rows[row]
            assert num_seen + row - first == chunks[number].start + at + 1
            assert tables.page_ids[table : table + len(chunks[number].pages)].tolist() == list(chunks[number].pages)
            seen.append(row)
    assert seen == list(range(len(batch))) and tables.num_rows_T[num_tiles:].tolist() == [0] * spare
    assert tables.slots_S.tolist() == [*batch.slots_S.tolist(), *[-1] * spare]


def test_tiles_are_products_of_64_rows() -> None:
    """As many tokens as give 64 rows with the heads that share a key; one token where a key has more heads."""
    heads = ((9, 3), (14, 2), (8, 8), (128, 1))
    assert [tile_queries(*each, torch.bfloat16) for each in heads] == [21, 9, 64, 1]
    assert [tile_queries(*each, torch.float32) for each in heads] == [5, 2, 16, 1]
