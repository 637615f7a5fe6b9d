"""The kernel for cards under Triton's interpreter, which runs its source on the processor: `make test-triton`.

fp32 alone: the interpreter's product of bf16 numbers multiplies their bits. On a card: tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ludus.engines.local.graphs import Replay
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.kernels.triton import TritonKernel
from ludus.kernels.library import AttentionRule
from ludus.models.load import LoadedModel
from tests.engines.local.kernels.test_kernels import SINKS, Paged, attend, for_heads, reference
from tests.engines.local.steps import make_runner, sampled

CPU = torch.device("cpu")


class FakeCapture:
    """Keeps the rule of a graph: what is captured runs again on the same tensors and returns the same one."""

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0

    def __call__(self, forward: Callable[[], Tensor]) -> Replay:
        self.num_captures += 1
        result = torch.full_like(forward(), torch.nan)

        def replay() -> Tensor:
            self.num_replays += 1
            return result.copy_(forward())

        return replay


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 3, 48), (14, 2, 64), (8, 1, 16)])
@pytest.mark.parametrize(
    "rule",
    [AttentionRule(0.3, None, None), AttentionRule(0.4, 5, 2.0), AttentionRule(0.3, 21, None, SINKS)],
    ids=["plain", "window and cap", "sinks"],
)
def test_rows_equal_attention_written_out(
    num_heads: int, num_kv_heads: int, head_dim: int, rule: AttentionRule
) -> None:
    """Any head width, group, window, cap and sinks, any length and place in a page, several rows of one sequence."""
    kernel, rule = TritonKernel(CPU), for_heads(rule, num_heads)
    paged_kv = Paged(kernel, [1, 16, 70], (num_kv_heads, head_dim), torch.float32)
    wanted = [(0, 0, 1), (2, 33, 37), (1, 14, 1), (2, 3, 20), (2, 69, 1)]
    k, v, chunks = paged_kv.rows(wanted)
    q = torch.randn(len(chunks), num_heads, head_dim, generator=torch.Generator().manual_seed(2))
    out = attend(kernel, q.transpose(0, 1), k, v, paged_kv.cache, chunks, rule)
    row = 0
    for sequence, start, num_tokens in wanted:
        for num_seen in range(start + 1, start + num_tokens + 1):
            expected = reference(q[row], *paged_kv.kv[sequence], num_seen, rule)
            assert torch.allclose(out[row].double(), expected, atol=1e-5), (sequence, num_seen)
            row += 1


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_replayed_steps_sample_what_steps_without_graphs_sample(
    family: str, loaded: Callable[..., LoadedModel]
) -> None:
    """Sequences that come and go, prompts among them, windows and caps: tokens are equal, a size is captured once."""
    model, capture, limits = loaded(family), FakeCapture(), [4, 9, 6]
    graphs = make_runner(model, TritonKernel(CPU), capture)
    found = sampled(graphs, limits)
    expected = sampled(make_runner(model, EagerKernel()), limits)
    for (ids, logprobs), (expected_ids, expected_logprobs) in zip(found, expected, strict=True):
        assert ids == expected_ids
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
    num_captures = capture.num_captures
    assert sampled(graphs, limits) == found and capture.num_captures == num_captures < capture.num_replays


def test_replayed_steps_see_new_weights(loaded: Callable[..., LoadedModel]) -> None:
    """Weights that a publish writes in place reach the steps that were captured before."""
    model = loaded("llama")
    runner = make_runner(model, TritonKernel(CPU), FakeCapture())
    before = sampled(runner, [4])
    with torch.no_grad():
        model.head_weight.mul_(2.0)
    try:
        assert sampled(runner, [4]) != before
    finally:
        with torch.no_grad():
            model.head_weight.div_(2.0)
