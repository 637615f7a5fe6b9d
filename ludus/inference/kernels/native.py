"""Paged attention in C++: attention.cpp through its plain C interface.

Knows: the compiled library, its page layouts.  Knows not: how it is compiled.
torch is imported first, so that the library runs on torch's own OpenMP threads instead of bringing a second pool.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

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
        ("slots", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("num_seen_in_all", ctypes.c_int64),
        ("any_neighbours", ctypes.c_int32),
    ]


class _Heads(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]


class NativeKernel:
    """The fast kernel, for fp32 and bf16 on the CPU.

    Every query token is computed by itself, in one order of operations: its result does not depend on the tokens
    beside it in the step, nor on how much of its prompt was cached.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._holds_pairs = bool(loaded.ludus_layout())
        self._attend = loaded.ludus_attend
        self._attend.argtypes = [*[ctypes.c_void_p] * 8, ctypes.c_int32]
        self._attend.restype = None
        self._runs: Runs | None = None
        """Whose rows `_rows` describes: every layer of a step brings the same."""
        self._rows = _Rows()

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

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, runs: Runs, rule: AttentionRule, out: Tensor
    ) -> None:
        q, k, v = _dense_last(q), _dense_last(k), _dense_last(v)
        num_heads, num_rows, head_dim = q.shape
        assert num_rows == k.shape[1] == len(runs), f"{num_rows} queries and {k.shape[1]} keys for {runs!r}"
        assert out.is_contiguous(), "the kernel writes results without gaps"
        self._attend(
            _heads(q), _heads(k), _heads(v), cache.data_ptr(), ctypes.byref(self._rows_of(runs)),
            ctypes.byref(_Rule(rule.scale, rule.softcap or 0.0, rule.window or 0)),
            ctypes.byref(_Shape(num_heads, k.shape[0], head_dim, _DTYPES[cache.dtype])),
            out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def _rows_of(self, runs: Runs) -> _Rows:
        if self._runs is not runs:
            self._runs = runs
            self._rows = _Rows(
                runs.page_ids.data_ptr(), runs.table_start_S.data_ptr(), runs.num_seen_S.data_ptr(),
                runs.slots_S.data_ptr(), len(runs), int(runs.num_seen_S.sum()), len(runs) > len(runs.runs),
            )  # fmt: skip
        return self._rows


def _heads(tensor: Tensor) -> Any:
    head, row, _ = tensor.stride()
    return ctypes.byref(_Heads(tensor.data_ptr(), head, row))


def _dense_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
