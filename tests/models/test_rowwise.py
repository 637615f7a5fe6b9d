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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_compute_the_same(dtype: torch.dtype) -> None:
    """Forward and backward, of every operation and both kinds of norm."""
    x, y, grad = (draw(1, 40, 48, dtype=dtype, seed=seed) for seed in range(3))
    weight = draw(48, dtype=dtype, seed=4)
    q, k = (each.view(1, 40, 3, 16).transpose(1, 2) for each in (x, y))
    cosine, sine = (draw(1, 40, 16, dtype=dtype, seed=seed) for seed in (5, 6))

    def results(ops: Rowwise) -> list[Tensor | None]:
        rules = (NormRule(1e-5, 0.0, True), NormRule(1e-5, 1.0, False))
        norms = [ops.norm(x, weight, rule) for rule in rules]
        slopes = [each for rule in rules for each in ops.norm_backward(grad, x, weight, rule, wants_weight=True)]
        gates = [ops.gate(x, y), *ops.gate_backward(grad, x, y, wants_output=True)]
        turns = [*ops.rotate(q, k, cosine, sine), *ops.rotate(q, k, cosine, sine, back=True)]
        return [*norms, *slopes, *gates, *turns]

    for got, expected in zip(results(NativeRowwise(build_library("rowwise"))), results(TorchRowwise()), strict=True):
        assert got is not None and expected is not None and got.dtype == expected.dtype
        off = (got.double() - expected.double()).abs().max() / expected.double().abs().max()
        assert float(off) <= TOLERANCE[dtype]
