"""Attention over a forest of tokens on a CUDA card: the tree's rule as a mask by blocks, in one fused kernel.

Knows: the ends of subtrees and the positions of one row.  Knows not: how rows are packed, what is trained.
Shapes: B one row, H heads, Hk heads of keys, S tokens of the row, Dh width of a head.

A row in depth-first order makes the tree one comparison: token j is token i itself or one of its ancestors exactly
if j <= i < end of j's subtree. Blocks of queries and keys in which nothing is seen are not computed at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ludus.kernels.library import AttentionRule
from ludus.models.flex import QUERY_BLOCK, MaskRule, ScoreRule, cap_scores, compiled


class TreeMasks:
    """Who sees whom in one row, by window; made once and used by every layer, forwards and backwards."""

    def __init__(self, ends_S: Tensor, positions_S: Tensor) -> None:
        """ends_S: index after a token's last descendant; positions_S: of a token in its own sequence."""
        self._ends_S = ends_S
        self._positions_S = positions_S
        self._masks: dict[int | None, BlockMask] = {}

    def mask(self, window: int | None) -> BlockMask:
        """Shape (1, 1, S queries, S keys), on the device of the row's tensors."""
        if window not in self._masks:
            num_tokens = len(self._ends_S)
            self._masks[window] = create_block_mask(
                tree_rule(self._ends_S, self._positions_S, window),
                None,
                None,
                num_tokens,
                num_tokens,
                device=self._ends_S.device,
                BLOCK_SIZE=QUERY_BLOCK,
            )
        return self._masks[window]


def tree_rule(ends_S: Tensor, positions_S: Tensor, window: int | None) -> MaskRule:
    """A token sees itself and its ancestors, those less than `window` positions back."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        seen = (key <= query) & (query < ends_S[key])
        return seen if window is None else seen & (positions_S[query] - positions_S[key] < window)

    return sees


def flex_tree_attention(q: Tensor, k: Tensor, v: Tensor, masks: TreeMasks, rule: AttentionRule) -> Tensor:
    """Softmax attention of each token over itself and its ancestors, shape (1, S, H, Dh).

    q: (1, H, S, Dh), k and v: (1, Hk, S, Dh) with H a multiple of Hk. Differentiable by all three on a card.
    """
    attend = _kernel(q.device)
    return attend(q, k, v, masks.mask(rule.window), cap_scores(rule.softcap), rule.scale).transpose(1, 2)


@functools.cache
def _kernel(device: torch.device) -> Callable[..., Tensor]:
    return compiled(_attend_tree, device, by_size=False)


def _attend_tree(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, score: ScoreRule | None, scale: float) -> Tensor:
    return flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=scale, enable_gqa=True)
