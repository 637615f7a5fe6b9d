"""The tree kernel in bf16 against fp64, and its bits; in fp32 it is tested through the plan of a row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.usefixtures("threads")
def test_a_row_of_several_batches_of_one_head_has_the_same_bits(dtype: torch.dtype, softcap: float | None) -> None:
    """Backwards threads share tiles, then keys, a batch at a time; how large it is depends on their number."""
    num_tokens = 1500
    row = Forest(torch.full((num_tokens,), num_tokens, dtype=torch.int32), torch.arange(num_tokens, dtype=torch.int32))
    rule = AttentionRule(0.2, None, softcap)
    q, k, v = (draw(heads, num_tokens, 16).to(dtype) for heads in (3, 1, 1))
    grad = draw(num_tokens, 3, 16).to(dtype)
    kernel = native_tree()
    results = []
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        output, kept = kernel.attend(q, k, v, row, rule)
        results.append((output, *kernel.differentiate(grad, q, k, v, kept, row, rule)))
    for result in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], result, strict=True))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell of memory")
def test_scratch_memory_of_a_long_row_is_given_back() -> None:
    """What a row of 40,000 tokens needs for the sums of its gradients is not kept, nor taken again by each row."""
    code = """
import resource, sys
import torch
from ludus.kernels.library import AttentionRule
from ludus.kernels.tree import Forest, native_tree

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def differentiate(num_tokens):
    row = Forest(torch.full((num_tokens,), num_tokens, dtype=torch.int32), torch.arange(num_tokens, dtype=torch.int32))
    q = torch.ones(1, 1, num_tokens, 256)
    rule = AttentionRule(0.1, 16, None)
    output, kept = native_tree().attend(q, q, q, row, rule)
    native_tree().differentiate(torch.ones(1, num_tokens, 1, 256), q, q, q, kept, row, rule)

differentiate(1000)
before = resident()
for _ in range(2):
    differentiate(40_000)
sys.stdout.write(str((resident() - before) >> 20))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40  # MiB, of which the sums alone take 78


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
