"""Attention over a forest of tokens by torch's operations, where no native kernel can run.

Knows: parents and positions of one row.  Knows not: autograd, models.

The row is cut into blocks of queries; a block brings only the keys that its queries can see:

    row      trunk trunk trunk | a a a | b b b        (a and b continue the trunk)
    blocks   queries trunk: keys trunk;  queries a: keys trunk, a;  queries b: keys trunk, b

H: heads, Hk: key heads, S: tokens of the row, Q and K: queries and keys of a block, Dh: width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ludus.kernels.library import AttentionRule
from ludus.kernels.tree import Forest
from ludus.models.attention import weigh_scores

Span = tuple[int, int]
"""Tokens start..end-1 of the row."""

# More queries a block would waste work on pairs that are masked; fewer would make products too small to be fast.
_MAX_QUERIES = 128
# What one more block costs, counted in (query, key) pairs: a dozen small operations against 16 pairs a nanosecond.
_BLOCK_COST = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """Queries start..end-1 and the spans of keys that at least one of them sees, in rising order."""

    start: int
    end: int
    keys: tuple[Span, ...]

    @property
    def num_keys(self) -> int:
        return sum(end - start for start, end in self.keys)

    @property
    def num_pairs(self) -> int:
        return (self.end - self.start) * self.num_keys


class TorchTree:
    """The same as NativeTree by torch's operations, for one row and on any device."""

    def __init__(self, parents: Sequence[int]) -> None:
        self.blocks = cut_blocks(parents)
        self._masks: dict[tuple[int | None, torch.dtype, torch.device], list[Tensor]] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, forest: Forest, rule: AttentionRule) -> tuple[Tensor, Tensor]:
        """Output of shape (1, S, H, Dh), and with sinks per head and token the log of the softmax's denominator, fp32
        (H, S); else the second result is empty, for the scores are computed again backwards."""
        _, num_heads, num_tokens, width = q.shape
        output = q.new_empty(1, num_tokens, num_heads, width)
        log_totals = output.new_empty(0 if rule.sinks is None else (num_heads, num_tokens), dtype=torch.float32)
        for block, mask in zip(self.blocks, self._masks_of(forest, rule.window, q), strict=True):
            query, key, value = q[:, :, block.start : block.end], _take(k, block.keys), _take(v, block.keys)
            if rule.softcap is None and rule.sinks is None:
                # its fused kernel keeps the scores in fp32
                part = functional.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, scale=rule.scale, enable_gqa=True
                )
            else:
                probs, totals, _ = _probs(_fold(query, k.shape[1]), key[0], mask, rule)
                if rule.sinks is not None:
                    log_totals[:, block.start : block.end] = totals
                part = (probs.to(q.dtype) @ value[0]).view(1, num_heads, -1, width)
            output[:, block.start : block.end] = part.transpose(1, 2)
        return output, log_totals

    def differentiate(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, forest: Forest, rule: AttentionRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v."""
        num_key_heads = k.shape[1]
        grad_q = torch.empty_like(q)
        # In fp32: keys are shared by many blocks, whose gradients add up. And for bf16 products oneDNN would compile
        # and keep code for each of the sizes that blocks come in, no two rows alike: a gigabyte in some twenty steps.
        grad_k, grad_v = (torch.zeros_like(each[0], dtype=torch.float32) for each in (k, v))
        for block, mask in zip(self.blocks, self._masks_of(forest, rule.window, q), strict=True):
            rows = slice(block.start, block.end)
            query = _fold(q[:, :, rows], num_key_heads).float()
            grad = _fold(grad_out[:, rows].transpose(1, 2), num_key_heads).float()
            key, value = _take(k, block.keys)[0].float(), _take(v, block.keys)[0].float()
            probs, _, slope = _probs(query, key, mask, rule)
            grad_value = probs.transpose(1, 2) @ grad
            grad_probs = grad @ value.transpose(1, 2)
            grad_scores = torch.ops.aten._softmax_backward_data(grad_probs, probs, -1, torch.float32)
            if slope is not None:
                grad_scores *= slope
            grad_scores = grad_scores.mul_(rule.scale)
            grad_q[0, :, rows] = (grad_scores @ key).view(q.shape[1], -1, q.shape[3])
            _add_spans(grad_k, grad_scores.transpose(1, 2) @ query, block.keys)
            _add_spans(grad_v, grad_value, block.keys)
        return grad_q, grad_k[None].to(k.dtype), grad_v[None].to(v.dtype)

    def _masks_of(self, forest: Forest, window: int | None, like: Tensor) -> list[Tensor]:
        """Per block an additive mask of shape (Q, K): 0 where the query sees the key, else -inf."""
        key = (window, like.dtype, like.device)
        if key not in self._masks:
            self._masks[key] = [_mask(block, forest, window).to(like.device, like.dtype) for block in self.blocks]
        return self._masks[key]


def _mask(block: Block, forest: Forest, window: int | None) -> Tensor:
    query = torch.arange(block.start, block.end)[:, None]
    key = torch.cat([torch.arange(start, end) for start, end in block.keys])[None]
    seen = (key <= query) & (query < forest.ends[key])
    if window is not None:
        seen &= forest.positions[query] - forest.positions[key] < window
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))


def cut_blocks(parents: Sequence[int]) -> tuple[Block, ...]:
    """The row cut into blocks, few and with few pairs: neighbours join where that costs less than one more block."""
    blocks: list[Block] = []
    for piece in _pieces(parents):
        if blocks:
            joined = Block(blocks[-1].start, piece.end, _merge([*blocks[-1].keys, *piece.keys]))
            separate = blocks[-1].num_pairs + piece.num_pairs + _BLOCK_COST
            if joined.end - joined.start <= _MAX_QUERIES and joined.num_pairs <= separate:
                blocks[-1] = joined
                continue
        blocks.append(piece)
    return tuple(blocks)


def _pieces(parents: Sequence[int]) -> list[Block]:
    """Unbranched runs of at most _MAX_QUERIES tokens, each with the spans of its own path as keys."""
    pieces: list[Block] = []
    run_start: list[int] = []  # per token, where its unbranched run began
    for index, parent in enumerate(parents):
        run_start.append(run_start[-1] if index and parent == index - 1 else index)
    start = 0
    while start < len(parents):
        end = start + 1
        while end < len(parents) and run_start[end] == run_start[start] and end - start < _MAX_QUERIES:
            end += 1
        spans: list[Span] = []
        at = end - 1
        while at != -1:
            spans.append((run_start[at], at + 1))
            at = parents[run_start[at]]
        pieces.append(Block(start, end, _merge(spans)))
        start = end
    return pieces


def _merge(spans: Sequence[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _probs(query: Tensor, key: Tensor, mask: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor, Tensor | None]:
    """Probabilities in fp32, shape (Hk, H/Hk * Q, K), the logs of their denominators (H, Q), and the cap's derivative
    by the scores (None without a cap)."""
    scores = (query @ key.transpose(1, 2)).float().mul_(rule.scale)
    slope = None
    if rule.softcap is not None:
        tanh = torch.tanh(scores / rule.softcap)
        scores, slope = rule.softcap * tanh, 1 - tanh * tanh
    num_queries, num_keys = mask.shape
    probs, log_totals = weigh_scores(scores.view(-1, num_queries, num_keys).add_(mask), rule.sinks)
    return probs.view_as(scores), log_totals, slope


def _fold(heads: Tensor, num_key_heads: int) -> Tensor:
    """(1, H, Q, Dh) as (Hk, H/Hk * Q, Dh): the queries of all heads that share a key head stand in one matrix."""
    return heads.reshape(num_key_heads, -1, heads.shape[-1])


def _take(heads: Tensor, spans: Sequence[Span]) -> Tensor:
    """The tokens of `spans` out of (1, Hk, S, Dh); a view if there is one span."""
    parts = [heads[:, :, start:end] for start, end in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _add_spans(total: Tensor, part: Tensor, spans: Sequence[Span]) -> None:
    """Add the tokens of `part` (Hk, K, Dh) to where `spans` says in `total` (Hk, S, Dh)."""
    at = 0
    for start, end in spans:
        total[:, start:end] += part[:, at : at + end - start]
        at += end - start
