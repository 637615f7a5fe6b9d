import random

import pytest
import torch
from torch import Tensor

from ludus.errors import InternalError
from ludus.kernels.library import AttentionRule
from ludus.models.tree import TreePlan, subtree_ends

SCALE = 0.3


def random_forest(rng: random.Random, num_tokens: int) -> tuple[list[int], list[int]]:
    """Parents and positions of a row in depth-first order with a few roots and many branches."""
    parents: list[int] = []
    path: list[int] = []
    for index in range(num_tokens):
        draw = rng.random()
        if draw < 0.03:
            path = []
        elif draw < 0.15 and path:
            path = path[: rng.randint(1, len(path))]
        parents.append(path[-1] if path else -1)
        path.append(index)
    positions: list[int] = []
    for parent in parents:
        positions.append(0 if parent == -1 else positions[parent] + 1)
    return parents, positions


def slow_attention(
    q: Tensor, k: Tensor, v: Tensor, parents: list[int], positions: list[int], rule: AttentionRule
) -> Tensor:
    """The definition: every token walks up its ancestors."""
    seen = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for index in range(len(parents)):
        at = index
        while at != -1:
            seen[index, at] = rule.window is None or positions[index] - positions[at] < rule.window
            at = parents[at]
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., : len(parents)]
    return (weights @ v.repeat_interleave(groups, 1)).transpose(1, 2)


@pytest.mark.parametrize("head_dim", [8, 16, 80])  # the native kernel takes multiples of 16
@pytest.mark.parametrize("num_tokens", [1, 60, 400])
@pytest.mark.parametrize(
    ("window", "cap", "has_sinks"),
    [(None, None, False), (4, None, False), (None, 3.0, False), (7, 2.0, False), (None, None, True), (7, 2.0, True)],
)
def test_tree_attention_is_attention_over_ancestors(
    head_dim: int, num_tokens: int, window: int | None, cap: float | None, has_sinks: bool
) -> None:
    """Output and gradients equal those of the definition, with windows, caps and sinks, whatever the blocks."""
    parents, positions = random_forest(random.Random(num_tokens), num_tokens)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, num_tokens, head_dim, generator=generator).requires_grad_() for heads in (4, 2, 2))
    grad = torch.randn(1, num_tokens, 4, head_dim, generator=generator)
    sinks = torch.tensor([-1.0, 3.0, 0.0, 20.0], requires_grad=True) if has_sinks else None
    rule = AttentionRule(SCALE, window, cap, sinks)
    fast = TreePlan(parents, positions).attend(0, q, k, v, rule)
    slow = slow_attention(q, k, v, parents, positions, rule)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    inputs = (q, k, v) if sinks is None else (q, k, v, sinks)
    fast_grads, slow_grads = (torch.autograd.grad(output, inputs, grad) for output in (fast, slow))
    for fast_grad, slow_grad in zip(fast_grads, slow_grads, strict=True):
        torch.testing.assert_close(fast_grad, slow_grad, atol=1e-5, rtol=1e-5)


def test_row_out_of_order_is_refused() -> None:
    """A row that is not in depth-first order is a bug of whoever packed it."""
    assert subtree_ends([-1, 0, 0]).tolist() == [3, 2, 3]
    with pytest.raises(InternalError, match="depth-first"):
        subtree_ends([-1, 0, 0, 1])
