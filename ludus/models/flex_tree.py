"""Attention over a forest of tokens on a CUDA card: the tree's rule as a mask by blocks, in one fused kernel.

Knows: the ends of subtrees and the positions of one row.  Knows not: how rows are packed, what is trained.
Shapes: B one row, H heads, Hk heads of keys, S tokens of the row, Dh width of a head; Q and K blocks of its tokens.

A row in depth-first order makes the tree one comparison: token j is token i itself or one of its ancestors exactly
if j <= i < end of j's subtree. Blocks of queries and keys in which nothing is seen are not computed at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

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
            some_QK, all_QK = seen_blocks(self._ends_S, self._positions_S, window)
            num_tokens = len(self._ends_S)
            self._masks[window] = BlockMask.from_kv_blocks(
                *_listed(some_QK & ~all_QK),
                *_listed(all_QK),
                BLOCK_SIZE=QUERY_BLOCK,
                mask_mod=tree_rule(self._ends_S, self._positions_S, window),
                seq_lengths=(num_tokens, num_tokens),
            )
        return self._masks[window]


def seen_blocks(ends_S: Tensor, positions_S: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Of blocks of queries and of keys, bool of shape (Q, K): where anything is seen at most, and where everything is.

    Made of the ends of blocks, never of pairs of tokens, of which a row of 100,000 tokens has ten billion. A block of
    which nothing is seen may be named with a window, and is then computed for nothing.
    """
    num_tokens, device = len(ends_S), ends_S.device
    num_blocks = -(-num_tokens // QUERY_BLOCK)

    def bounds(values_S: Tensor) -> tuple[Tensor, Tensor]:
        """Least and greatest of each block; what fills up the last one repeats its last token."""
        filling = values_S[-1:].expand(num_blocks * QUERY_BLOCK - num_tokens)
        least_B, greatest_B = torch.cat([values_S, filling]).view(num_blocks, QUERY_BLOCK).aminmax(dim=1)
        return least_B, greatest_B

    (least_end_K, greatest_end_K), (first_K, last_K) = bounds(ends_S), bounds(positions_S)
    block_B = torch.arange(num_blocks, device=device)
    start_Q = block_B[:, None] * QUERY_BLOCK
    is_before_QK, is_own_QK = block_B < block_B[:, None], block_B == block_B[:, None]
    some_QK = is_own_QK | (is_before_QK & (greatest_end_K > start_Q))
    all_QK = is_before_QK & (least_end_K >= start_Q + QUERY_BLOCK)  # a last block that is not whole never is
    if window is not None:
        some_QK &= first_K[:, None] - last_K < window
        all_QK &= last_K[:, None] - first_K < window
    return some_QK, all_QK


def _listed(is_named_QK: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block names, and which, these first; as BlockMask takes them."""
    num_Q = is_named_QK.sum(1, dtype=torch.int32)
    indices_QK = (~is_named_QK).int().argsort(dim=1, stable=True).int()
    return num_Q[None, None], indices_QK[None, None]


def tree_rule(ends_S: Tensor, positions_S: Tensor, window: int | None) -> MaskRule:
    """A token sees itself and its ancestors, those less than `window` positions back."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        seen = (key <= query) & (query < ends_S[key])
        return seen if window is None else seen & (positions_S[query] - positions_S[key] < window)

    return sees


def flex_tree_attention(q: Tensor, k: Tensor, v: Tensor, masks: TreeMasks, rule: AttentionRule) -> Tensor:
    """Softmax attention of each token over itself and its ancestors, shape (1, S, H, Dh).

    q: (1, H, S, Dh), k and v: (1, Hk, S, Dh) with H a multiple of Hk. Differentiable by them and the
    rule's sinks on a card.
    """
    attend = _kernel(q.device)
    mask, score = masks.mask(rule.window), cap_scores(rule.softcap)
    return attend(q, k, v, mask, score, rule.scale, rule.sinks).transpose(1, 2)


@functools.cache
def _kernel(device: torch.device) -> Callable[..., Tensor]:
    return compiled(_attend_tree, device)


def _attend_tree(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, score: ScoreRule | None, scale: float, sinks: Tensor | None
) -> Tensor:
    attend = functools.partial(flex_attention, score_mod=score, block_mask=mask, scale=scale, enable_gqa=True)
    if sinks is None:
        return attend(q, k, v)
    output, aux = attend(q, k, v, return_aux=AuxRequest(lse=True))
    # of e^lse + e^sink, what the keys have
    shared: Tensor = output * torch.sigmoid(aux.lse - sinks[:, None])[..., None]
    return shared.to(output.dtype)
