"""Row-wise operations of decoder layers (norms, gated activations, rotary positions) in C++: rowwise.cpp through its
plain C interface.

Knows: the compiled library, tensors on the CPU.  Knows not: autograd, modules.
Invariant: a row's bits depend on that row alone, not on its neighbours or on the number of threads.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.library import ADDRESS, COUNT, DTYPES, SIZE, dense_last, load_library


@dataclass(frozen=True, slots=True)
class NormRule:
    """RMSNorm: x / sqrt(mean(x²) + eps) * (offset + weight), computed in fp32."""

    eps: float
    offset: float
    """0: the factor is the weight. 1: the factor is 1 + weight."""
    casts_first: bool
    """Whether the normalised x is rounded to its type before the multiplication, as well as the product after it."""


class RowStrides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("num_inner", "outer", "inner")]


class _Heads(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("num", "head", "row")]


class _Rule(ctypes.Structure):
    _fields_ = [("eps", ctypes.c_float), ("offset", ctypes.c_float), ("casts_first", ctypes.c_int32)]


class NativeRowwise:
    """The same as TorchRowwise (ludus/models/rowwise.py), which documents it, for fp32 and bf16 on the CPU."""

    def __init__(self, library: Path) -> None:
        at, size, count = ADDRESS, SIZE, COUNT
        signatures = {
            "ludus_norm": (at, at, size, size, at, at, at, count, count),
            "ludus_norm_backward": (at, at, at, at, size, size, at, at, at, at, count, count),
            "ludus_gate": (at, size, at, size, size, size, at, count, count),
            "ludus_gate_backward": (at, at, size, at, size, size, size, at, at, count, count),
            "ludus_rotate": (at, at, at, at, at, at, size, size, size, count, at, count, count),
        }
        loaded = load_library(library, signatures)
        self._norm, self._norm_backward = loaded.ludus_norm, loaded.ludus_norm_backward
        self._gate, self._gate_backward = loaded.ludus_gate, loaded.ludus_gate_backward
        self._rotate = loaded.ludus_rotate

    def norm(self, x: Tensor, weight: Tensor, rule: NormRule) -> Tensor:
        x, num_rows, rows = row_strides(x)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._norm(
            x.data_ptr(), ctypes.byref(rows), num_rows, x.shape[-1], weight.data_ptr(), ctypes.byref(_rule(rule)),
            out.data_ptr(), _dtype(x, weight), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rule: NormRule, *, wants_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        grad, _, grad_rows = row_strides(grad)
        x, num_rows, rows = row_strides(x)
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        grad_weight = torch.empty(weight.shape, dtype=torch.float32) if wants_weight else None
        self._norm_backward(
            grad.data_ptr(), ctypes.byref(grad_rows), x.data_ptr(), ctypes.byref(rows), num_rows, x.shape[-1],
            weight.data_ptr(), ctypes.byref(_rule(rule)), grad_x.data_ptr(),
            None if grad_weight is None else grad_weight.data_ptr(), _dtype(grad, x, weight), torch.get_num_threads(),
        )  # fmt: skip
        return grad_x, grad_weight

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, num_rows, gate_stride = even_rows(gate)
        up, _, up_stride = even_rows(up)
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
        self._gate(
            gate.data_ptr(), gate_stride, up.data_ptr(), up_stride, num_rows, gate.shape[-1],
            out.data_ptr(), _dtype(gate, up), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor, *, wants_output: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        grad = grad.contiguous()
        gate, num_rows, gate_stride = even_rows(gate)
        up, _, up_stride = even_rows(up)
        width = gate.shape[-1]
        grads = gate.new_empty(*gate.shape[:-1], 2 * width)
        output = torch.empty_like(gate, memory_format=torch.contiguous_format) if wants_output else None
        self._gate_backward(
            grad.data_ptr(), gate.data_ptr(), gate_stride, up.data_ptr(), up_stride, num_rows, width, grads.data_ptr(),
            None if output is None else output.data_ptr(), _dtype(grad, gate, up), torch.get_num_threads(),
        )  # fmt: skip
        return grads[..., :width], grads[..., width:], output

    def rotate(
        self, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]:
        q, k = dense_last(q), dense_last(k)
        cosine, sine = cosine.contiguous(), sine.contiguous()
        _, num_heads, num_rows, dim = q.shape
        assert q.shape[0] == k.shape[0] == 1 and dim % 2 == 0, f"one row of even heads, not {tuple(q.shape)}"
        assert cosine.shape == sine.shape == (1, num_rows, dim), f"angles of shape {tuple(cosine.shape)}"
        total = num_heads + k.shape[1]
        out = q.new_empty(num_rows, total, dim)
        self._rotate(
            q.data_ptr(), ctypes.byref(_Heads(num_heads, q.stride(1), q.stride(2))),
            k.data_ptr(), ctypes.byref(_Heads(k.shape[1], k.stride(1), k.stride(2))),
            cosine.data_ptr(), sine.data_ptr(), dim, num_rows, dim, back,
            out.data_ptr(), _dtype(q, k, cosine, sine), torch.get_num_threads(),
        )  # fmt: skip
        heads = out.transpose(0, 1)[None]
        return heads[:, :num_heads], heads[:, num_heads:]


def _dtype(*tensors: Tensor) -> int:
    first = tensors[0].dtype
    assert all(tensor.dtype == first for tensor in tensors), f"types differ: {[each.dtype for each in tensors]}"
    return DTYPES[first]


def _rule(rule: NormRule) -> _Rule:
    return _Rule(rule.eps, rule.offset, rule.casts_first)


def row_strides(tensor: Tensor) -> tuple[Tensor, int, RowStrides]:
    """The tensor, copied only if its rows need more than two strides; the number of rows; their strides."""
    width = tensor.shape[-1]
    num_rows = tensor.numel() // max(1, width)
    if tensor.is_contiguous():
        return tensor, num_rows, RowStrides(max(1, num_rows), 0, width)
    levels: list[tuple[int, int]] = []  # (size, stride) of the merged row dimensions, outermost first
    for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        if size == 1:
            continue
        if levels and levels[-1][1] == size * stride:
            levels[-1] = (levels[-1][0] * size, stride)
        else:
            levels.append((size, stride))
    if len(levels) > 2 or tensor.stride(-1) != 1:
        return tensor.contiguous(), num_rows, RowStrides(max(1, num_rows), 0, width)
    (_, outer), (num_inner, inner) = [(1, 0), (1, 0), *levels][-2:]
    return tensor, num_rows, RowStrides(num_inner, outer, inner)


def even_rows(tensor: Tensor) -> tuple[Tensor, int, int]:
    """The tensor, copied unless its rows are evenly spaced; the number of rows; their stride."""
    tensor, num_rows, rows = row_strides(tensor)
    if rows.num_inner < num_rows and rows.num_inner > 1:
        tensor, num_rows, rows = row_strides(tensor.contiguous())
    return tensor, num_rows, rows.inner if rows.num_inner > 1 else rows.outer
