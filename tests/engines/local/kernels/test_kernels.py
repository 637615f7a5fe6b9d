"""Kernels of paged attention against attention written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.eager import EagerKernel, dense_attention
from ludus.engines.local.kernels.native import NativeKernel
from ludus.engines.local.kernels.select import choose_kernel
from ludus.errors import BackendError
from ludus.kernels.build import build_library, compile_source, find_compiler, source_path
from ludus.kernels.library import AttentionRule

KERNELS = ("eager", "native", "portable")
MakeKernel = Callable[[str], AttentionKernel]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
SINKS = torch.tensor([-1.0, 3.0, 0.0, 90.0, -200.0, 1.0, 2.0]).repeat(2)
"""Of up to 14 heads: of little and much weight, and such that leave a key none or take none."""


def for_heads(rule: AttentionRule, num_heads: int) -> AttentionRule:
    """The rule with as many sinks as there are heads, if it has any."""
    return rule if rule.sinks is None else replace(rule, sinks=rule.sinks[:num_heads])


@pytest.fixture(scope="session")
def make_kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AttentionKernel]:
    """Kernels by name; "portable" is the native one as a processor without special instructions gets it."""
    portable = tmp_path_factory.mktemp("portable") / "attention.so"
    compile_source(find_compiler(), source_path("attention"), portable, [()])
    makers = {
        "eager": EagerKernel,
        "native": lambda: NativeKernel(build_library("attention")),
        "portable": lambda: NativeKernel(portable),
    }
    return lambda name: makers[name]()


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_seen: int, rule: AttentionRule) -> torch.Tensor:
    """Attention of one query (H, D) to the first `num_seen` of k and v (Hk, S, D), in float64."""
    first = 0 if rule.window is None else max(0, num_seen - rule.window)
    group = q.shape[0] // k.shape[0]
    keys = k[:, first:num_seen].double().repeat_interleave(group, 0)
    values = v[:, first:num_seen].double().repeat_interleave(group, 0)
    scores = (keys @ q.double()[:, :, None])[..., 0] * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks.double()[:, None]], -1)
    return (scores.softmax(-1)[:, None, : keys.shape[1]] @ values)[:, 0]


def attend(
    kernel: AttentionKernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    chunks: RaggedBatch,
    rule: AttentionRule,
) -> torch.Tensor:
    """What the queries (H, S, D) get once keys and values are stored, shape (S, H, D)."""
    out = torch.empty(q.shape[1], q.shape[0], q.shape[2], dtype=q.dtype)
    kernel.attend(q, k, v, cache, chunks=chunks, rule=rule, out=out)
    return out


class Paged:
    """Sequences stored into shuffled pages of one layer, and the keys and values that went in."""

    def __init__(self, kernel: AttentionKernel, lengths: list[int], shape: tuple[int, int], dtype: torch.dtype) -> None:
        num_kv_heads, head_dim = shape
        generator = torch.Generator().manual_seed(1)
        num_pages = [-(-length // PAGE_TOKENS) for length in lengths]
        shuffled = torch.randperm(sum(num_pages) + 3, generator=generator).tolist()
        self.tables = [[shuffled.pop() for _ in range(num)] for num in num_pages]
        self.cache = torch.zeros(sum(num_pages) + 3, num_kv_heads, 2, PAGE_TOKENS * head_dim, dtype=dtype)
        self.kv = []
        for length, table in zip(lengths, self.tables, strict=True):
            # as a model hands them over: heads inside tokens, seen through a transposition
            k, v = (
                torch.randn(length, num_kv_heads, head_dim, generator=generator).to(dtype).transpose(0, 1) for _ in "kv"
            )
            attend(
                kernel,
                k,
                k,
                v,
                self.cache,
                RaggedBatch([SequenceChunk(0, length, table)]),
                AttentionRule(1.0, None, None),
            )
            self.kv.append((k, v))

    def rows(self, chunks: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch]:
        """Keys, values and places of (sequence, first token, number of tokens), one after the other."""
        parts = [
            (*(each[:, start : start + num_tokens] for each in self.kv[sequence]),)
            for sequence, start, num_tokens in chunks
        ]
        k, v = (torch.cat([part[i] for part in parts], dim=1) for i in (0, 1))
        return (
            k,
            v,
            RaggedBatch(
                [SequenceChunk(start, num_tokens, self.tables[sequence]) for sequence, start, num_tokens in chunks]
            ),
        )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(1, 1, 16), (3, 3, 48), (9, 3, 64), (4, 1, 80), (14, 2, 64), (10, 2, 128), (6, 1, 96), (8, 1, 256)],
)
@pytest.mark.parametrize(
    "rule",
    [
        AttentionRule(0.3, None, None),
        AttentionRule(0.2, 21, None),
        AttentionRule(0.5, None, 4.0),
        AttentionRule(0.4, 5, 2.0),
        AttentionRule(0.3, 21, None, SINKS),
        AttentionRule(0.4, None, 2.0, SINKS),
    ],
    ids=["plain", "window", "softcap", "both", "sinks", "softcap and sinks"],
)
def test_rows_equal_attention_written_out(
    name: str,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rule: AttentionRule,
    dtype: torch.dtype,
    make_kernel: MakeKernel,
) -> None:
    """Any head width, group, window, cap and sinks, any length and place in a page, several rows of one sequence."""
    kernel, rule = make_kernel(name), for_heads(rule, num_heads)
    paged = Paged(kernel, [1, 15, 16, 17, 70], (num_kv_heads, head_dim), dtype)
    # (sequence, first token, number of tokens): single tokens as in decoding, and chunks of prompts
    wanted = [(0, 0, 1), (4, 33, 37), (1, 14, 1), (2, 15, 1), (4, 3, 20), (3, 0, 17), (4, 69, 1)]
    k, v, chunks = paged.rows(wanted)
    q = torch.randn(len(chunks), num_heads, head_dim, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = attend(kernel, q.transpose(0, 1), k, v, paged.cache, chunks, rule)
    row = 0
    for sequence, start, num_tokens in wanted:
        for num_seen in range(start + 1, start + num_tokens + 1):
            expected = reference(q[row], *paged.kv[sequence], num_seen, rule)
            assert torch.allclose(out[row].double(), expected, atol=TOLERANCES[dtype]), (sequence, num_seen)
            row += 1


def test_a_row_of_the_native_kernel_depends_on_its_own_sequence_alone(make_kernel: MakeKernel) -> None:
    """A token gets the same bits alone as in a chunk of its prompt beside other sequences."""
    for name, dtype in (("native", torch.bfloat16), ("native", torch.float32), ("portable", torch.bfloat16)):
        kernel = make_kernel(name)
        paged = Paged(kernel, [50, 30], (2, 32), dtype)
        q = torch.randn(80, 6, 32, generator=torch.Generator().manual_seed(2)).to(dtype)
        rule = AttentionRule(0.3, None, None)
        k, v, chunks = paged.rows([(0, 0, 50), (1, 0, 30)])
        together = attend(kernel, q.transpose(0, 1), k, v, paged.cache, chunks, rule)
        for at in (0, 20, 49):
            k, v, chunks = paged.rows([(0, at, 1)])
            alone = attend(kernel, q[at : at + 1].transpose(0, 1), k, v, paged.cache, chunks, rule)
            assert torch.equal(alone[0], together[at])


def test_large_scores_neither_overflow_nor_vanish(make_kernel: MakeKernel) -> None:
    """Scores in the thousands give the values of the largest, in both types."""
    for dtype in TOLERANCES:
        kernel = make_kernel("native")
        paged = Paged(kernel, [40], (1, 16), dtype)
        q = (paged.kv[0][0][:, 7] * 100).unsqueeze(1)
        rule = AttentionRule(10.0, None, None)
        k, v, chunks = paged.rows([(0, 39, 1)])
        out = attend(kernel, q, k, v, paged.cache, chunks, rule)
        expected = reference(q[:, 0], *paged.kv[0], 40, rule)
        assert torch.allclose(out[0].double(), expected, atol=TOLERANCES[dtype])


def test_capped_dense_attention_is_causal() -> None:
    """Attention with a cap and no mask lets no query see what comes after it."""
    q, k, v = (torch.randn(1, heads, 6, 16, generator=torch.Generator().manual_seed(3)) for heads in (4, 2, 2))
    rule = AttentionRule(0.3, None, 2.0)
    out = dense_attention(q, k, v, None, rule)
    for at in range(6):
        assert torch.allclose(out[0, :, at].double(), reference(q[0, :, at], k[0], v[0], at + 1, rule), atol=1e-5)


def test_a_model_that_a_fast_kernel_cannot_serve_gets_the_eager_one() -> None:
    """Asked for by name it is refused with the reason; left to itself the engine takes what works."""
    odd = torch.zeros(2, 2)
    assert isinstance(choose_kernel("auto", odd, head_dim=20), EagerKernel)
    assert isinstance(choose_kernel("eager", odd, head_dim=64), EagerKernel)
    with pytest.raises(BackendError, match="20"):
        choose_kernel("native", odd, head_dim=20)
    with pytest.raises(BackendError, match="float64"):
        choose_kernel("native", odd.double(), head_dim=64)
    with pytest.raises(BackendError, match="triton attention kernel cannot be used: it runs on a CUDA card"):
        choose_kernel("triton", odd, head_dim=64)
