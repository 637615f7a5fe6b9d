"""Paged attention in C++: attention.cpp through its plain C interface.

Knows: the compiled library, its page layouts.  Knows not: how it is compiled.
torch is imported first, so that the library runs on torch's own OpenMP threads instead of bringing a second pool.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ludus.inference.kernels.base import AttentionRule, Runs

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
# The accumulators of one head must stay in registers and first-level cache.
_MAX_HEAD_DIM = 256


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "dtype")]


class _Rule(ctypes.Structure):
    _fields_ = [("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("window", ctypes.c_int32)]


class _Rows(ctypes.Structure):
    _fields_ = [
        ("page_ids", ctypes.c_void_p),
        ("table_start", ctypes.c_void_p),
        ("num_seen", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
    ]


class NativeKernel:
    """The fast kernel, for fp32 and bf16 on the CPU.

    Every query token is computed by itself, in one order of operations: its result does not depend on the tokens
    beside it in the step, nor on how much of its prompt was cached.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._holds_pairs = bool(self._library.ludus_layout())
        pointer, size, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        self._store = self._library.ludus_store
        self._store.argtypes = [pointer, size, size, pointer, size, size, pointer, size, pointer, pointer, count]
        self._store.restype = None
        self._attend = self._library.ludus_attend
        self._attend.argtypes = [pointer, size, size, pointer, pointer, pointer, pointer, pointer, count]
        self._attend.restype = None

    def __repr__(self) -> str:
        return f"<NativeKernel {'AVX512-BF16' if self._holds_pairs else 'portable'}>"

    @staticmethod
    def refusal(weight: Tensor, head_dim: int) -> str | None:
        """Why the kernel cannot serve such a model. None: it can."""
        if weight.device.type != "cpu":
            return f"it runs on the CPU, and the model is on {weight.device}"
        if weight.dtype not in _DTYPES:
            return f"it knows fp32 and bf16, and the model has {weight.dtype}"
        if head_dim % 16 or head_dim > _MAX_HEAD_DIM:
            return f"it takes heads of 16, 32 … {_MAX_HEAD_DIM} dimensions, and the model has {head_dim}"
        return None

    def store(self, cache: Tensor, k: Tensor, v: Tensor, runs: Runs) -> None:
        k, v = _dense_last(k), _dense_last(v)
        num_kv_heads, num_tokens, head_dim = k.shape
        assert num_tokens == len(runs), f"{num_tokens} keys for {runs!r}"
        shape = _Shape(num_kv_heads, num_kv_heads, head_dim, _DTYPES[cache.dtype])
        self._store(
            k.data_ptr(), k.stride(0), k.stride(1), v.data_ptr(), v.stride(0), v.stride(1),
            runs.slots_S.data_ptr(), num_tokens, ctypes.byref(shape),
            cache.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def attend(self, q: Tensor, cache: Tensor, runs: Runs, rule: AttentionRule, out: Tensor) -> None:
        q = _dense_last(q)
        num_heads, num_rows, head_dim = q.shape
        assert num_rows == len(runs) and out.is_contiguous(), f"{num_rows} queries for {runs!r}, or scattered results"
        table = _Rows(runs.page_ids.data_ptr(), runs.table_start_S.data_ptr(), runs.num_seen_S.data_ptr(), num_rows)
        shape = _Shape(num_heads, cache.shape[1], head_dim, _DTYPES[cache.dtype])
        how = _Rule(rule.scale, rule.softcap or 0.0, rule.window or 0)
        self._attend(
            q.data_ptr(), q.stride(0), q.stride(1), cache.data_ptr(), ctypes.byref(table),
            ctypes.byref(how), ctypes.byref(shape),
            out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip


def _dense_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
