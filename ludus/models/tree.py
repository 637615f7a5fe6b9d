"""Attention over a forest of tokens: each token sees itself and its ancestors, shared prefixes are computed once.

Knows: parents and positions of one row, which kernel can serve it.  Knows not: what is trained, how kernels work.
Invariant: a token's output depends on its ancestors alone, so a row gives what its sequences would give one by one.

A row in depth-first order makes the tree one comparison: token j is token i itself or one of its ancestors exactly if
j <= i < end of j's subtree. On a CUDA card `flex_tree` attends, on the CPU our native kernel or torch's operations.

H: heads, Hk: key heads, S: tokens of the row, Dh: width of a head.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ludus.errors import InternalError
from ludus.kernels.library import AttentionRule, cost_level
from ludus.kernels.tree import Forest, NativeTree, native_tree, unsupported_reason
from ludus.models.blocks import TorchTree
from ludus.models.flex_tree import TreeMasks, flex_tree_attention

_log = logging.getLogger(__name__)


class TreePlan:
    """Attention plan of one row, made once and used by every layer in forward and backward passes.

    parents[i]: index of the token before token i in its sequence, -1 at the first; rows stand in depth-first order.
    positions[i]: position of token i in its own sequence.
    """

    def __init__(self, parents: Sequence[int], positions: Sequence[int]) -> None:
        assert len(parents) == len(positions), "parents and positions must have equal length"
        self._parents = parents
        self.forest = Forest(subtree_ends(parents), torch.tensor(positions, dtype=torch.int32))
        self._card_masks: TreeMasks | None = None
        """None: nothing on a card has attended yet."""

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """Output of shape (1, S, H, Dh); see AttentionPlan. Differentiable by q, k and v."""
        if q.device.type == "cuda":
            if self._card_masks is None:
                self._card_masks = TreeMasks(self.forest.ends.to(q.device), self.forest.positions.to(q.device))
            return flex_tree_attention(q, k, v, self._card_masks, rule)
        kernel = _native_kernel(q.device, q.dtype, q.shape[-1]) or self._torch_tree
        return tree_attention(q, k, v, self.forest, rule, kernel)

    @functools.cached_property
    def _torch_tree(self) -> TorchTree:
        return TorchTree(self._parents)


def subtree_ends(parents: Sequence[int]) -> Tensor:
    """Per token the index after the last of its descendants. Raises InternalError unless depth-first."""
    ends = [len(parents)] * len(parents)
    path: list[int] = []
    for index, parent in enumerate(parents):
        while path and path[-1] != parent:
            ends[path.pop()] = index
        if not path and parent != -1:
            raise InternalError(
                f"row is not depth-first: parent {parent} of token {index} is not on the path before it"
            )
        path.append(index)
    return torch.tensor(ends, dtype=torch.int32)


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, forest: Forest, rule: AttentionRule, kernel: NativeTree | TorchTree
) -> Tensor:
    """Softmax attention of each token over itself and its ancestors, shape (1, S, H, Dh).

    q: (1, H, S, Dh), k and v: (1, Hk, S, Dh) with H a multiple of Hk. The backward pass recomputes the scores, so
    little but q, k and v is kept. Differentiable by the rule's sinks too.
    """
    output: Tensor = _TreeAttention.apply(q, k, v, rule.sinks, forest, rule, kernel)  # type: ignore[no-untyped-call]
    return output


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        forest: Forest,
        rule: AttentionRule,
        kernel: NativeTree | TorchTree,
    ) -> Tensor:
        output, kept = kernel.attend(q, k, v, forest, rule)
        ctx.save_for_backward(q, k, v, kept, sinks, None if sinks is None else output)
        ctx.forest, ctx.rule, ctx.kernel = forest, rule, kernel
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, kept, sinks, output = ctx.saved_tensors
        grads = ctx.kernel.differentiate(grad_output, q, k, v, kept, ctx.forest, ctx.rule)
        return *grads, _grad_of_sinks(sinks, kept, output, grad_output), None, None, None


def _grad_of_sinks(
    sinks: Tensor | None, log_totals: Tensor, output: Tensor | None, grad_output: Tensor
) -> Tensor | None:
    """A sink's weight p brings no value, so by its score the loss moves by -p times gradient times output.

    sinks: (H,).  log_totals: (H, S).  output, grad_output: (1, S, H, Dh).
    """
    if sinks is None or output is None:
        return None
    moved_SH = (grad_output.float() * output.float()).sum(-1)[0]
    return -(torch.exp(sinks[:, None] - log_totals) * moved_SH.t()).sum(1)


@functools.cache
def _native_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> NativeTree | None:
    """The native kernel for such heads. None: there is none, and torch's operations have to do."""
    reason = unsupported_reason(device, dtype, head_dim)
    if reason is None:
        return native_tree()
    _log.log(cost_level(device), "training attention runs on torch's operations, which are slower: %s", reason)
    return None
