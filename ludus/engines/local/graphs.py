"""Steps as CUDA graphs: captured once for each padded number of rows, replayed with new inputs.

Knows: the model, the pages, the tables of the kernel.  Knows not: what comes next, sampling.
Shapes: S rows of a step; D width of the model.

A step is hundreds of small kernels, and starting them one by one takes longer than running them: 30 ms on an H200,
whatever is in it. A graph starts them all at once, but always on the same addresses: inputs are copied into tensors
that stay, and the weights, which a publish writes in place, are read where they lie. Steps with prompts in them are
captured like those that only decode, because where agents play nearly every step has some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ludus.engines.local.kernels.base import RaggedBatch
from ludus.engines.local.kernels.tables import CardTables
from ludus.engines.local.kernels.triton import StepTables, attend_with, tile_queries
from ludus.engines.local.paged import PagedCache
from ludus.kernels.library import AttentionRule
from ludus.models.load import LoadedModel

_log = logging.getLogger(__name__)

Replay = Callable[[], Tensor]
"""Computes again, from what the inputs hold now; always returns the same tensor."""
Capture = Callable[[Callable[[], Tensor]], Replay]


def choose_capture(device: torch.device) -> Capture | None:
    """How steps on `device` become graphs. None: they do not."""
    return CardCapture() if device.type == "cuda" else None


class CardCapture:
    """Captures on the current card. All graphs share one pool of memory, for only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, forward: Callable[[], Tensor]) -> Replay:
        """Runs `forward` twice; it must read its inputs from tensors that stay. Raises RuntimeError if it cannot be
        captured, as without the memory for it; then it may be tried again."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # compiles kernels and lets libraries allocate, which no graph may hold
            forward()
            # torch.cuda.graph would wait for the card and give all unused memory back, at every size that occurs;
            # other threads may go on using the card, for instance to copy
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = forward()
            except BaseException:
                with suppress(RuntimeError):  # which says no more than that something failed before
                    graph.capture_end()
                self._pool = torch.cuda.graph_pool_handle()  # the other may count as being written
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class StepGraphs:
    """Forward passes of steps, each size captured once and replayed with other inputs.

    A size that cannot be captured, even after unused memory was given back, is computed one operation at a time.
    """

    def __init__(
        self, model: LoadedModel, cache: PagedCache, *, max_running: int, max_pages: int, capture: Capture
    ) -> None:
        """max_running: most sequences of a step.  max_pages: most pages of one."""
        config = model.config
        self._model = model
        self._cache = cache
        self._max_running = max_running
        self._capture = capture
        head = model.head_weight
        self._queries = tile_queries(config.num_heads, config.num_kv_heads, head.dtype)
        self._tables = CardTables(max_running, max_pages, head.device)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._is_told = False
        """The log says that some size could not be captured."""

    def __repr__(self) -> str:
        return f"<StepGraphs of {sorted({num_rows for num_rows, _ in self._graphs})} rows>"

    def forward(self, ids: Sequence[int], positions: Sequence[int], chunks: RaggedBatch) -> Tensor:
        """Final hidden states, shape (S, D); the next step of as many rows overwrites them. Modifies the cache."""
        # rows that only decode want small tiles
        queries = 1 if len(chunks.chunks) == len(chunks) else self._queries
        size = padded_size(len(chunks))
        graph = self._graphs.get((size, queries))
        if graph is None:
            num_tiles = min(size, self._max_running + size // queries)
            graph = _Graph(StepTables(size, num_tiles, queries=queries, page_ids=self._tables.page_ids))
        graph.tables.fill(ids, positions, chunks, self._tables.place([chunk.pages for chunk in chunks.chunks]))
        if graph.replay is None:
            graph.replay = self._captured(partial(self._compute, graph.tables), size)
            self._graphs[size, queries] = graph
        return graph.replay()[: len(chunks)]

    def _captured(self, compute: Callable[[], Tensor], size: int) -> Replay:
        try:
            return self._capture(compute)
        except RuntimeError as error:
            _log.info("graphs.again rows=%d after: %s", size, error)
        torch.cuda.empty_cache()
        try:
            return self._capture(compute)
        except RuntimeError as error:
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "steps of %d rows run without a CUDA graph, which is slower: %s. If memory is short, lower "
                    "engine.kv_bytes; steps of other sizes may follow",
                    size,
                    error,
                )
        return compute  # fails once more by itself if the step was to blame

    def _compute(self, tables: StepTables) -> Tensor:
        plan = _TablesPlan(self._cache, tables)
        return self._model.backbone(tables.ids_S[None], tables.positions_S[None], plan)[0]


def padded_size(num_rows: int) -> int:
    """The rows that a graph for `num_rows` has: powers of two, and above 64 numbers half-way between them.

    Few sizes, because each is captured when it first occurs; and not too few, because rows that fill up are computed.
    """
    size = 1 << (num_rows - 1).bit_length()
    return size // 4 * 3 if size > 64 and num_rows <= size // 4 * 3 else size


@dataclass(slots=True, eq=False)
class _Graph:
    """The inputs of one size, and how to compute with them."""

    tables: StepTables
    replay: Replay | None = None
    """None: not captured yet."""


@dataclass(frozen=True, slots=True)
class _TablesPlan:
    """Attention of a step whose tables stay where they are; an AttentionPlan."""

    cache: PagedCache
    tables: StepTables

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        out = q.new_empty(1, q.shape[2], q.shape[1], q.shape[3])
        attend_with(self.tables, q[0], k[0], v[0], self.cache.layer(layer_idx), rule=rule, out=out[0])
        return out
