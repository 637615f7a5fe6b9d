"""torch's operations against the native ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ludus.kernels.build import build_library
from ludus.kernels.rowwise import NativeRowwise, NormRule
from ludus.models.rowwise import Rowwise, TorchRowwise

# relative to the largest value: one rounding of bf16, fp32 sums in another order
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def draw(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def results(ops: Rowwise, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Forward and backward, of every operation and both kinds of norm, with rows in one stride and in two."""
    x, y, grad = (draw(1, 40, 48, dtype=dtype, seed=seed).to(device) for seed in range(3))
    weight = draw(48, dtype=dtype, seed=4).to(device)
    q, k = (each.view(1, 40, 3, 16).transpose(1, 2) for each in (x, y))
    cosine, sine = (draw(1, 40, 16, dtype=dtype, seed=seed).to(device) for seed in (5, 6))
    rules = (NormRule(1e-5, 0.0, True), NormRule(1e-5, 1.0, False))
    norms = [ops.norm(each, weight[: each.shape[-1]], rule) for rule in rules for each in (x, q)]
    slopes = [
        part
        for rule in rules
        for part in (
            *ops.norm_backward(grad, x, weight, rule, wants_weight=True),
            *ops.norm_backward(grad.view(1, 40, 3, 16).transpose(1, 2), q, weight[:16], rule, wants_weight=True),
            ops.norm_backward(grad, x, weight, rule, wants_weight=False)[0],
        )
    ]
    gates = [ops.gate(x, y), *ops.gate_backward(grad, x, y, wants_output=True)]
    turns = [*ops.rotate(q, k, cosine, sine), *ops.rotate(q, k, cosine, sine, back=True)]
    return [each for each in (*norms, *slopes, *gates, *turns) if each is not None]


def assert_same(ours: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for got, each in zip(ours, expected, strict=True):
        assert got.dtype == each.dtype and got.shape == each.shape
        off = (got.cpu().double() - each.double()).abs().max() / each.double().abs().max()
        assert float(off) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_both_compute_the_same(dtype: torch.dtype) -> None:
    """Native operations and torch's, forward and backward."""
    assert_same(results(NativeRowwise(build_library("rowwise")), dtype), results(TorchRowwise(), dtype), dtype)
