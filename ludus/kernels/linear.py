"""y = x Wᵀ + b in C++: linear.cpp through its plain C interface.

Knows: shapes, strides, the compiled library.  Knows not: gradients, models.
Invariant: a row of the result has the same bits whatever other rows are in the call, with any number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ludus.errors import InternalError
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import ADDRESS, COUNT, DTYPES, SIZE, load_library, refuse, torch_here
from ludus.processes.files import remembered, user_cache

_TOO_SLOW = 2.0
"""Largest acceptable ratio to the time of torch's product. Up to this, results that do not depend on the batch are
worth the cost."""
_FEW_ROUNDS, _MANY_ROUNDS = 8, 100


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None, *, adds: bool = False
) -> Tensor:
    """x Wᵀ + b, shape (..., N), of x's type: accumulated in fp32, rounded once. Without gradients.

    x: (..., K) on the CPU; copied first if its rows are not dense or not evenly spaced.
    weight: (N, K), not copied; `unsupported_reason` must be None for it.
    bias: (N,) of the same type, dense.
    out: (..., N) contiguous, or (M, N) with dense rows; filled and returned. None: a new tensor.
    adds: add to the values in `out`, which are part of the sum that is rounded once.
    Raises BackendError if the library cannot be built, InternalError for tensors that do not fit together.
    """
    num_outputs, width = weight.shape
    if x.shape[-1] != width or x.dtype != weight.dtype or x.device.type != "cpu":
        raise _unfit("x", x, f"rows of {width} {weight.dtype} on the CPU, like the weight")
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        raise InternalError("native linear has no gradients; call it under torch.no_grad(), or use torch's linear")
    if bias is not None and (bias.dtype != weight.dtype or bias.shape[0] != num_outputs or bias.stride(0) != 1):
        raise _unfit("bias", bias, f"{num_outputs} dense values of {weight.dtype}, like the weight")
    shape = (*x.shape[:-1], num_outputs)
    assert out is not None or not adds, "adds=True needs `out`"
    if out is None:
        out = torch.empty(shape, dtype=x.dtype)
    elif out.shape != shape or out.dtype != x.dtype or not _lies_in_rows(out):
        raise _unfit("out", out, f"{shape} of {x.dtype} in dense rows")
    if not _lies_in_rows(x):
        x = x.contiguous()
    _function()(
        x.data_ptr(), _distance(x), weight.data_ptr(), weight.stride(0),
        None if bias is None else bias.data_ptr(), out.data_ptr(), _distance(out), int(adds),
        x.numel() // width, num_outputs, width, DTYPES[x.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out


def unsupported_reason(weight: Tensor) -> str | None:
    """Why `linear` does not support such a weight. None: it does. Builds the library if needed."""
    reason = refuse(weight.device, weight.dtype)
    if reason is not None:
        return reason
    if weight.dim() != 2 or weight.numel() == 0 or not _lies_in_rows(weight):
        return f"it needs a matrix with dense rows, and the weight has {tuple(weight.shape)}, strides {weight.stride()}"
    function = obtain(_function)
    if isinstance(function, str):
        return function
    ratio = _times_as_long(weight.dtype, torch.get_num_threads())
    return f"it takes {ratio:.1f} times as long as torch's product here" if ratio > _TOO_SLOW else None


@cache
def _times_as_long(dtype: torch.dtype, num_threads: int, folder: Path | None = None) -> float:
    """Ratio of our product's time to torch's for few rows; measured once for this build and torch, and stored.

    folder: where it is stored. None: the user's cache.
    """
    build = build_library("linear").parent.name
    name = f"linear-{build}-{torch_here()}-{str(dtype).removeprefix('torch.')}-{num_threads}.json"
    return remembered((folder or user_cache() / "machine") / name, lambda: _measure(dtype))["ratio"]


def _measure(dtype: torch.dtype) -> dict[str, float]:
    """Measure the ratio; longer if it seems too slow, as other load on the machine can distort a few rounds."""
    ratio = _ratio(dtype, _FEW_ROUNDS)
    return {"ratio": ratio if ratio <= _TOO_SLOW else _ratio(dtype, _MANY_ROUNDS)}


def _ratio(dtype: torch.dtype, rounds: int) -> float:
    """Ratio of the shortest times over alternating rounds, with as many rows as are decoded together."""
    ours, theirs = 0.0, 0.0
    weight = torch.ones(1536, 576, dtype=dtype)
    with torch.no_grad():
        for num_rows in (1, 16, 64):
            x = torch.ones(num_rows, 576, dtype=dtype)
            turns = [(_seconds(linear, x, weight), _seconds(functional.linear, x, weight)) for _ in range(rounds)]
            ours, theirs = ours + min(own for own, _ in turns), theirs + min(other for _, other in turns)
    return ours / theirs


def _seconds(multiply: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> float:
    started_at = time.perf_counter()
    multiply(x, weight)
    return time.perf_counter() - started_at


@cache
def _function() -> Callable[..., None]:
    """The library's one function, loaded once per process."""
    at, size, count = ADDRESS, SIZE, COUNT
    signature = (at, size, at, size, at, at, size, count, size, size, size, count, count)
    function: Callable[..., None] = load_library(build_library("linear"), {"ludus_linear": signature}).ludus_linear
    return function


def _lies_in_rows(tensor: Tensor) -> bool:
    """Whether the last dimension has stride 1 and all rows are evenly spaced."""
    return tensor.is_contiguous() or (tensor.dim() == 2 and tensor.stride(1) == 1)


def _distance(tensor: Tensor) -> int:
    """Stride from one row to the next. A dimension of size 1 may have any stride, so the second last may mislead."""
    return tensor.stride(0) if tensor.dim() == 2 else tensor.shape[-1]


def _unfit(name: str, got: Tensor, wanted: str) -> InternalError:
    return InternalError(
        f"{name} must be {wanted}, got {tuple(got.shape)} by {got.stride()} of {got.dtype} on {got.device}"
    )
