"""The tree's rule as a block mask, on the CPU and uncompiled; no card is needed, and none is used."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module

from ludus.kernels.library import AttentionRule
from ludus.models.flex import QUERY_BLOCK
from ludus.models.flex_tree import TreeMasks, flex_tree_attention, seen_blocks, tree_rule
from ludus.models.tree import TreePlan, subtree_ends

SCALE = 0.3
SINKS = torch.tensor([-1.0, 3.0, 0.0, 20.0])
CASES = [(1, None, None), (40, None, None), (90, 7, None), (90, None, 2.0), (150, 20, 3.0)]


def random_row(num_tokens: int) -> tuple[list[int], list[int]]:
    """Parents and positions of a row in depth-first order with several roots and many branches."""
    rng = random.Random(num_tokens)
    parents: list[int] = []
    positions: list[int] = []
    path: list[int] = []
    for index in range(num_tokens):
        if rng.random() < 0.2:
            path = path[: rng.randint(0, len(path))]
        parents.append(path[-1] if path else -1)
        positions.append(len(path))
        path.append(index)
    return parents, positions


def heads(num_tokens: int) -> list[Tensor]:
    """Queries of four heads, keys and values of two, and a gradient of what comes out."""
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = [(1, 4, num_tokens, 16), (1, 2, num_tokens, 16), (1, 2, num_tokens, 16), (1, num_tokens, 4, 16)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.usefixtures("plain_flex")
@pytest.mark.parametrize(("num_tokens", "window", "softcap"), CASES)
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["", "sinks"])
def test_block_mask_gives_the_trees_attention(
    num_tokens: int, window: int | None, softcap: float | None, sinks: Tensor | None
) -> None:
    """Outputs are those of the attention that the CPU uses, with windows, caps and sinks."""
    parents, positions = random_row(num_tokens)
    q, k, v, _ = heads(num_tokens)
    masks, rule = (
        TreeMasks(subtree_ends(parents), torch.tensor(positions)),
        AttentionRule(SCALE, window, softcap, sinks),
    )
    found = flex_tree_attention(q, k, v, masks, rule)
    expected = TreePlan(parents, positions).attend(0, q, k, v, rule)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("num_tokens", "window", "softcap"), [(90, 7, None), (150, 20, 3.0)])
def test_block_mask_gives_the_trees_gradients(
    num_tokens: int, window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch, plain_flex: None
) -> None:
    """Gradients by queries, keys, values and sinks are those of the attention that the CPU uses.

    torch refuses gradients on the CPU, for which it has no fused kernel; the rules of its derivative are the same.
    """
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    parents, positions = random_row(num_tokens)
    q, k, v, grad = heads(num_tokens)
    inputs = [each.requires_grad_() for each in (q, k, v, SINKS.clone())]
    masks = TreeMasks(subtree_ends(parents), torch.tensor(positions))
    rule = AttentionRule(SCALE, window, softcap, inputs[3])
    found = flex_tree_attention(q, k, v, masks, rule)
    expected = TreePlan(parents, positions).attend(0, q, k, v, rule)
    grads = zip(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True)
    for ours, reference in grads:
        torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-5)


def test_blocks_that_are_seen_are_listed() -> None:
    """A kernel reads listed blocks alone: those in which something is seen, and no others."""
    num_tokens = 3 * QUERY_BLOCK + 10
    chains = [*range(-1, QUERY_BLOCK - 1), -1, *range(QUERY_BLOCK, num_tokens - 1)]
    mask = TreeMasks(subtree_ends(chains), torch.arange(num_tokens)).mask(None)
    # the first chain fills the first block; the second chain is causal among the other three
    assert mask.to_dense()[0, 0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize("window", [None, 1, 60, 200, 2000])
@pytest.mark.parametrize("num_tokens", [1, 128, 500, 1024, 1500])
def test_blocks_are_those_of_all_pairs(num_tokens: int, window: int | None) -> None:
    """Held against every pair of tokens: none that is seen is left out, whole blocks are, and without a window exactly
    the blocks in which something is seen are named."""
    parents, positions = random_row(num_tokens)
    ends = subtree_ends(parents)
    some, whole = seen_blocks(ends, torch.tensor(positions), window)
    num_blocks = len(some)
    at = torch.arange(num_blocks * QUERY_BLOCK)
    rule = tree_rule(
        *(torch.cat([each, each.new_zeros(len(at) - num_tokens)]) for each in (ends, torch.tensor(positions))), window
    )
    pairs = rule(torch.tensor(0), torch.tensor(0), at[:, None], at) & (at[:, None] < num_tokens) & (at < num_tokens)
    blocks = pairs.view(num_blocks, QUERY_BLOCK, num_blocks, QUERY_BLOCK).transpose(1, 2).flatten(2)
    assert not (blocks.any(-1) & ~some).any() and not (whole & ~blocks.all(-1)).any() and not (whole & ~some).any()
    if window is None:
        assert torch.equal(some, blocks.any(-1)) and torch.equal(whole, blocks.all(-1))


def test_nothing_is_left_on_the_host(plain_flex: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks and results are where the row is: torch's device without values stands in for a card."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    q, k, v, _ = (each.to("meta") for each in heads(40))
    masks = TreeMasks(torch.zeros(40, dtype=torch.int64, device="meta"), torch.arange(40, device="meta"))
    assert flex_tree_attention(q, k, v, masks, AttentionRule(SCALE, 7, 2.0)).device.type == "meta"
