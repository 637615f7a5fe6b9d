"""Paged attention in C++: attention.cpp through its plain C interface.

Knows: the compiled library, its page layouts.  Knows not: how it is compiled.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ludus.engines.local.kernels.base import RaggedBatch
from ludus.kernels.library import (
    ADDRESS,
    COUNT,
    DTYPES,
    SIZE,
    AttentionRule,
    HeadsStruct,
    RuleStruct,
    dense_last,
    load_library,
)


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "dtype")]


class _Rows(ctypes.Structure):
    _fields_ = [
        *((name, ADDRESS) for name in ("page_ids", "table_start", "num_seen", "slots")),
        *(("num_rows", SIZE), ("num_seen_in_all", SIZE), ("any_neighbours", COUNT)),
    ]


class NativeKernel:
    """The fast kernel, for fp32 and bf16 on the CPU.

    Every query token is computed by itself, in one order of operations: its result does not depend on the tokens
    beside it in the step, nor on how much of its prompt was cached.
    """

    def __init__(self, library: Path) -> None:
        loaded = load_library(library, {"ludus_attend": (*[ADDRESS] * 8, COUNT)})
        self._holds_pairs = bool(loaded.ludus_layout())
        self._attend = loaded.ludus_attend
        self._chunks: RaggedBatch | None = None
        """Whose rows `_rows` describes: every layer of a step brings the same."""
        self._rows = _Rows()

    def __repr__(self) -> str:
        return f"<NativeKernel {'AVX512-BF16' if self._holds_pairs else 'portable'}>"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, chunks: RaggedBatch, rule: AttentionRule, out: Tensor
    ) -> None:
        q, k, v = dense_last(q), dense_last(k), dense_last(v)
        num_heads, num_rows, head_dim = q.shape
        assert num_rows == k.shape[1] == len(chunks), f"{num_rows} queries and {k.shape[1]} keys for {chunks!r}"
        assert out.is_contiguous(), "the kernel writes results without gaps"
        self._attend(
            *(ctypes.byref(HeadsStruct.of(each)) for each in (q, k, v)), cache.data_ptr(),
            ctypes.byref(self._rows_of(chunks)), ctypes.byref(RuleStruct.of(rule)),
            ctypes.byref(_Shape(num_heads, k.shape[0], head_dim, DTYPES[cache.dtype])),
            out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def _rows_of(self, chunks: RaggedBatch) -> _Rows:
        if self._chunks is not chunks:
            self._chunks = chunks
            self._rows = _Rows(
                chunks.page_ids.data_ptr(), chunks.table_start_S.data_ptr(), chunks.num_seen_S.data_ptr(),
                chunks.slots_S.data_ptr(), len(chunks), int(chunks.num_seen_S.sum()), len(chunks) > len(chunks.chunks),
            )  # fmt: skip
        return self._rows
