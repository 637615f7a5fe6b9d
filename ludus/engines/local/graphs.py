"""Decode steps as CUDA graphs: captured once for each padded number of rows, replayed with new inputs.

Knows: the model, the pages, the tables of the flex kernel.  Knows not: what comes next, sampling.
Shapes: N rows of a step, one token each; D width of the model.

A decode step of a small model is hundreds of small kernels, and starting them one by one takes longer than running
them. A graph starts them all at once, but always on the same addresses: inputs are copied into tensors that stay,
and the weights, which a publish writes in place, are read where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.engines.local.kernels.base import RaggedBatch
from ludus.engines.local.kernels.flex import DecodeTables, FlexKernel, padded_size, store_rows
from ludus.engines.local.paged import PagedCache
from ludus.kernels.library import AttentionRule
from ludus.models.load import LoadedModel

Replay = Callable[[], Tensor]
"""Computes again, from what the inputs hold now; always returns the same tensor."""
Capture = Callable[[Callable[[], Tensor]], Replay]

# The first run of a step compiles kernels and lets libraries allocate, which no graph may hold; the second is as all
# later ones.
_WARM_UPS = 2


def choose_capture(device: torch.device) -> Capture | None:
    """How decode steps on `device` become graphs. None: they do not."""
    return CardCapture() if device.type == "cuda" else None


class CardCapture:
    """Captures on the current card. All graphs share one pool of memory, for only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Callable[[], Tensor]) -> Replay:
        """Runs `forward` a few times; it must read its inputs from tensors that stay."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may go on using the card, for instance to copy
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = forward()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class DecodeGraphs:
    """Forward passes of steps in which every row is one token."""

    def __init__(
        self, model: LoadedModel, cache: PagedCache, kernel: FlexKernel, *, num_pages: int, capture: Capture
    ) -> None:
        self._model = model
        self._cache = cache
        self._kernel = kernel
        self._num_pages = num_pages
        self._capture = capture
        self._graphs: dict[int, _Graph] = {}

    def __repr__(self) -> str:
        return f"<DecodeGraphs of {sorted(self._graphs)} rows>"

    @staticmethod
    def serves(chunks: RaggedBatch) -> bool:
        """Whether a step is one that a graph can compute."""
        return len(chunks.chunks) == len(chunks)

    def forward(self, ids: Sequence[int], positions: Sequence[int], chunks: RaggedBatch) -> Tensor:
        """Final hidden states, shape (N, D); the next step of as many rows overwrites them. Modifies the cache."""
        num_rows = len(chunks)
        size = padded_size(num_rows)
        graph = self._graphs.get(size) or _Graph.of(size, self._kernel.tables(size, num_pages=self._num_pages))
        # what fills up the batch repeats its first row, so that all of it is valid
        filling = size - num_rows
        graph.ids_1N.copy_(torch.tensor([[*ids, *[ids[0]] * filling]]))
        graph.positions_1N.copy_(torch.tensor([[*positions, *[positions[0]] * filling]]))
        graph.tables.fill(chunks, torch.arange(num_rows))
        if graph.replay is None:
            plan = _DecodePlan(self._cache, self._kernel, graph.tables)
            graph.replay = self._capture(lambda: self._model.backbone(graph.ids_1N, graph.positions_1N, plan)[0])
            self._graphs[size] = graph
        return graph.replay()[:num_rows]


@dataclass(slots=True, eq=False)
class _Graph:
    """The inputs of one size, and how to compute with them."""

    ids_1N: Tensor
    positions_1N: Tensor
    tables: DecodeTables
    replay: Replay | None = None
    """None: not captured yet."""

    @classmethod
    def of(cls, size: int, tables: DecodeTables) -> _Graph:
        ids_1N = torch.zeros(1, size, dtype=torch.int64, device=tables.slots_N.device)
        return cls(ids_1N, torch.zeros_like(ids_1N), tables)


@dataclass(frozen=True, slots=True)
class _DecodePlan:
    """Attention of rows that decode, on tables that stay where they are; an AttentionPlan."""

    cache: PagedCache
    kernel: FlexKernel
    tables: DecodeTables

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        layer = self.cache.layer(layer_idx)
        store_rows(layer, k[0], v[0], self.tables.slots_N)
        return self.kernel.attend_decoding(q[0].transpose(0, 1), layer, self.tables, rule)[None]
