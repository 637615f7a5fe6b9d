"""Paged keys and values as an attention plan: one ragged forward pass over tokens of many sequences.

Knows: kernels, the runs of tokens of a step.  Knows not: sampling, scheduling, models.
Shapes: S tokens of the step, H heads, Hk heads of keys and values, D width of a head.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel, RaggedBatch
from ludus.engines.local.kernels.eager import causal_attention
from ludus.kernels.library import AttentionRule
from ludus.models.config import ModelConfig


class PagedCache:
    """Keys and values of all layers in pages; memory is touched page by page as it is used."""

    def __init__(self, config: ModelConfig, num_pages: int, *, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, num_pages, config.num_kv_heads, 2, PAGE_TOKENS * config.head_dim)
        self._layers = _zeros(shape, dtype, device)

    def __repr__(self) -> str:
        num_layers, num_pages = self._layers.shape[:2]
        return f"<PagedCache layers={num_layers} pages={num_pages} {self._layers.dtype}>"

    @staticmethod
    def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        return config.num_layers * config.num_kv_heads * 2 * PAGE_TOKENS * config.head_dim * dtype.itemsize

    def layer(self, layer_idx: int) -> Tensor:
        """Cache of one layer, as kernels take it."""
        return self._layers[layer_idx]

    def free(self) -> None:
        self._layers = self._layers.new_empty(0)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to), in order."""
        for source, target in copies:
            self._layers[:, target] = self._layers[:, source]


class PagedPlan:
    """Stores the tokens of a step into pages, then attends; an AttentionPlan."""

    def __init__(self, cache: PagedCache, kernel: AttentionKernel, chunks: RaggedBatch) -> None:
        self._cache = cache
        self._kernel = kernel
        self._chunks = chunks

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        num_rows, shape = len(self._chunks), (1, q.shape[2], q.shape[1], q.shape[3])
        rows = (q[0], k[0], v[0])
        if num_rows == q.shape[2]:
            out = q.new_empty(shape)
            into = out[0]
        else:  # rows behind them only fill up the matrices
            out = q.new_zeros(shape)
            into = out[0, :num_rows]
            rows = (q[0, :, :num_rows], k[0, :, :num_rows], v[0, :, :num_rows])
        self._kernel.attend(*rows, self._cache.layer(layer_idx), chunks=self._chunks, rule=rule, out=into)
        return out


class CausalPlan:
    """Plain causal attention over one sequence; keeps nothing. An AttentionPlan."""

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        return causal_attention(q, k, v, rule).transpose(1, 2)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on Linux take no memory until they are written to, and then in large pages.

    They must be zeros: what a mask hides is still multiplied by 0, and memory as it comes may hold NaN.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages serves small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
