"""The tree kernel in bf16 against fp64, and its bits; in fp32 it is tested through the plan of a row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ludus.kernels.library import AttentionRule
from ludus.kernels.tree import Forest, native_tree

# a trunk of 40 tokens, two branches of 30 that continue it, and a stranger of 20
ENDS = (100,) * 40 + (70,) * 30 + (100,) * 30 + (120,) * 20
POSITIONS = (*range(70), *range(40, 70), *range(20))
FOREST = Forest(torch.tensor(ENDS, dtype=torch.int32), torch.tensor(POSITIONS, dtype=torch.int32))


def draw(*shape: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(sum(shape)))


def exact(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    query, key = torch.arange(len(ENDS))[:, None], torch.arange(len(ENDS))[None]
    seen = (key <= query) & (query < FOREST.ends[key])
    if rule.window is not None:
        seen &= FOREST.positions[query] - FOREST.positions[key] < rule.window
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(2, 3) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v.repeat_interleave(groups, 1)).transpose(1, 2)


@pytest.mark.parametrize("head_dim", [16, 64, 112])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (9, 2.0)])
def test_bf16_is_near_fp64(head_dim: int, window: int | None, softcap: float | None) -> None:
    """Output and gradients in bf16 are within its rounding of the definition in fp64."""
    rule = AttentionRule(head_dim**-0.5, window, softcap)
    q, k, v = (draw(heads, len(ENDS), head_dim).bfloat16() for heads in (6, 2, 2))
    grad = draw(len(ENDS), 6, head_dim).bfloat16()
    kernel = native_tree()
    output, kept = kernel.attend(q, k, v, FOREST, rule)
    grads = kernel.differentiate(grad, q, k, v, kept, FOREST, rule)
    exact_inputs = [each.double().requires_grad_() for each in (q, k, v)]
    expected = exact(*exact_inputs, rule)
    expected_grads = torch.autograd.grad(expected, exact_inputs, grad.double())
    for got, wanted in zip((output, *grads), (expected.detach(), *expected_grads), strict=True):
        assert float((got.double() - wanted).abs().max() / wanted.abs().max()) < 0.02


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("threads")
def test_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    """Output and gradients are the same bits on one thread and on three."""
    rule = AttentionRule(0.2, None, None)
    q, k, v = (draw(heads, len(ENDS), 32).to(dtype) for heads in (6, 2, 2))
    grad = draw(len(ENDS), 6, 32).to(dtype)
    kernel = native_tree()
    results = []
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        output, kept = kernel.attend(q, k, v, FOREST, rule)
        results.append((output, *kernel.differentiate(grad, q, k, v, kept, FOREST, rule)))
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))
