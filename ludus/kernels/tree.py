"""Attention over a forest of tokens in C++: tree.cpp through its plain C interface.

Knows: shapes, strides, the compiled library.  Knows not: autograd, models.
Invariant: the results have the same bits however many threads compute them.

H: heads, Hk: heads of keys, S: tokens, Dh: width of a head.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import (
    ADDRESS,
    COUNT,
    DTYPES,
    AttentionRule,
    HeadsStruct,
    RuleStruct,
    dense_last,
    load_library,
    refuse_heads,
)

_GIVEN, _MADE = ("q", "k", "v"), ("out", "grad_out", "grad_q", "grad_k", "grad_v")


@dataclass(frozen=True, slots=True)
class Forest:
    """The tree structure of a row of tokens in depth-first order; both int32 of shape (S,)."""

    ends: Tensor
    """For each token, the index after its last descendant."""
    positions: Tensor
    """Position of each token in its own sequence."""


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "num_tokens", "head_dim", "dtype")]


class _Tensors(ctypes.Structure):
    _fields_ = [(name, HeadsStruct) for name in (*_GIVEN, *_MADE)] + [("log_totals", ctypes.c_void_p)]


class NativeTree:
    """Forward and backward attention of each token over itself and its ancestors, for fp32 and bf16 on the CPU."""

    def __init__(self, library: Path) -> None:
        signature = (ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, COUNT, COUNT)
        self._call = load_library(library, {"ludus_tree": signature}).ludus_tree

    def attend(self, q: Tensor, k: Tensor, v: Tensor, forest: Forest, rule: AttentionRule) -> tuple[Tensor, Tensor]:
        """Output of shape (1, S, H, Dh), and the log of the softmax's denominator of each head and token, fp32 (H, S).

        q: (1, H, S, Dh), k and v: (1, Hk, S, Dh) with H a multiple of Hk.
        """
        _, num_heads, num_tokens, head_dim = q.shape
        out = q.new_empty(1, num_tokens, num_heads, head_dim)
        log_totals = torch.empty(num_heads, num_tokens)
        self._run({"q": q, "k": k, "v": v, "out": out.transpose(1, 2)}, log_totals, forest, rule)
        return out, log_totals

    def differentiate(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, log_totals: Tensor, forest: Forest, rule: AttentionRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v from the gradient of the output. log_totals: as returned by `attend`."""
        # stored token by token, the layout that the projections' gradients need
        grads = tuple(each.new_empty(each.transpose(1, 2).shape).transpose(1, 2) for each in (q, k, v))
        named = dict(zip(("grad_q", "grad_k", "grad_v"), grads, strict=True))
        given = {"q": q, "k": k, "v": v, "grad_out": grad_out.transpose(1, 2)}
        self._run(given | named, log_totals, forest, rule)
        return grads[0], grads[1], grads[2]

    def _run(self, heads: dict[str, Tensor], log_totals: Tensor, forest: Forest, rule: AttentionRule) -> None:
        dense = {name: dense_last(each) for name, each in heads.items()}  # kept alive until the call is over
        tensors = _Tensors(log_totals=log_totals.data_ptr())
        for name, each in dense.items():
            setattr(tensors, name, HeadsStruct.of(each))
        q = heads["q"]
        shape = _Shape(q.shape[1], heads["k"].shape[1], q.shape[2], q.shape[3], DTYPES[q.dtype])
        self._call(
            forest.ends.data_ptr(), forest.positions.data_ptr(), ctypes.byref(RuleStruct.of(rule)),
            ctypes.byref(shape), ctypes.byref(tensors), int("grad_q" in heads), torch.get_num_threads(),
        )  # fmt: skip


def unsupported_reason(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why attention with such heads is not supported here. None: it is."""
    tree = obtain(native_tree, refuse_heads(device, dtype, head_dim))
    return tree if isinstance(tree, str) else None


@cache
def native_tree() -> NativeTree:
    """The compiled kernel, one for the process. Raises BackendError if there is no compiler, or if it fails."""
    return NativeTree(build_library("tree"))
