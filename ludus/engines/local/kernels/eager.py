"""Paged attention with torch's own operations: gathers pages, then scaled dot-product attention.

Works wherever torch works. Pages hold tokens in rows: keys [PAGE_TOKENS][D], values [PAGE_TOKENS][D].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch, SequenceChunk
from ludus.kernels.library import AttentionRule
from ludus.models.attention import weigh_scores

# Gathered keys and values of one call stay below this, so that many long sequences do not exhaust memory.
_GATHER_BYTES = 64 * 2**20


class EagerKernel:
    """The fallback that needs no compiler."""

    def __repr__(self) -> str:
        return "<EagerKernel>"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, *, chunks: RaggedBatch, rule: AttentionRule, out: Tensor
    ) -> None:
        """Runs of one token, as in decoding, go together; longer ones one by one."""
        _store(cache, k, v, chunks)
        singles: list[int] = []
        at = 0
        for chunk in chunks.chunks:
            if chunk.num_tokens == 1:
                singles.append(at)
            else:
                part = slice(at, at + chunk.num_tokens)
                out[part] = _attend_run(q[:, part], cache, chunk, rule)
            at += chunk.num_tokens
        if singles:
            _attend_singles(q, cache, chunks, torch.tensor(singles), rule, out)


def _store(cache: Tensor, k: Tensor, v: Tensor, chunks: RaggedBatch) -> None:
    tokens = cache.view(*cache.shape[:3], PAGE_TOKENS, -1)
    slots_S = chunks.slots_S.to(cache.device)
    pages_S, offsets_S = slots_S // PAGE_TOKENS, slots_S % PAGE_TOKENS
    tokens[pages_S, :, 0, offsets_S] = k.transpose(0, 1)
    tokens[pages_S, :, 1, offsets_S] = v.transpose(0, 1)


def _attend_run(q: Tensor, cache: Tensor, chunk: SequenceChunk, rule: AttentionRule) -> Tensor:
    """Attention of one run, shape (S, H, D)."""
    num_seen = chunk.start + chunk.num_tokens
    gathered = cache[torch.tensor(chunk.pages[: -(-num_seen // PAGE_TOKENS)], device=cache.device)]
    # (pages, Hk, 2, tokens, D) → (2, 1, Hk, pages * tokens, D)
    kv = gathered.view(*gathered.shape[:3], PAGE_TOKENS, -1).permute(2, 1, 0, 3, 4).flatten(2, 3)[:, None]
    return causal_attention(q[None], kv[0, :, :, :num_seen], kv[1, :, :, :num_seen], rule)[0].transpose(0, 1)


def _attend_singles(
    q: Tensor, cache: Tensor, chunks: RaggedBatch, rows_N: Tensor, rule: AttentionRule, out: Tensor
) -> None:
    """Attention of the rows `rows_N`, each alone in its run. Modifies `out`."""
    seen_N1 = chunks.num_seen_S[rows_N, None]
    width = -(-int(seen_N1.max()) // PAGE_TOKENS)
    # tables as a rectangle; beyond a row's own pages stand pages that the mask hides
    at_NP = (chunks.table_start_S[rows_N, None] + torch.arange(width)).clamp_(max=len(chunks.page_ids) - 1)
    pages_NP = chunks.page_ids[at_NP].long().to(cache.device)
    at_K = torch.arange(width * PAGE_TOKENS)
    mask_NK = at_K < seen_N1 if rule.window is None else (at_K < seen_N1) & (at_K >= seen_N1 - rule.window)
    mask_NK = mask_NK.to(cache.device)
    row_bytes = width * cache[0].numel() * cache.element_size()
    for start in range(0, len(rows_N), max(1, _GATHER_BYTES // row_bytes)):
        part = slice(start, start + max(1, _GATHER_BYTES // row_bytes))
        gathered = cache[pages_NP[part]]
        # (n, pages, Hk, 2, tokens, D) → (2, n, Hk, pages * tokens, D)
        kv = gathered.view(*gathered.shape[:4], PAGE_TOKENS, -1).permute(3, 0, 2, 1, 4, 5).flatten(3, 4)
        q_part = q[:, rows_N[part]].transpose(0, 1).unsqueeze(2)
        out[rows_N[part]] = dense_attention(q_part, kv[0], kv[1], mask_NK[part, None, None], rule)[:, :, 0]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    """Attention of the last Q tokens of a sequence, q (1, H, Q, D), to all of it, k and v (1, Hk, K, D)."""
    num_queries, num_seen = q.shape[2], k.shape[2]
    if num_queries == num_seen and (rule.window is None or rule.window >= num_seen):
        return dense_attention(q, k, v, None, rule)
    at_Q1 = torch.arange(num_seen - num_queries, num_seen, device=q.device)[:, None]
    at_K = torch.arange(num_seen, device=q.device)
    mask_QK = at_K <= at_Q1
    if rule.window is not None:
        mask_QK &= at_K > at_Q1 - rule.window
    return dense_attention(q, k, v, mask_QK, rule)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: AttentionRule) -> Tensor:
    """Attention of q (B, H, Q, D) to k and v (B, Hk, S, D), shape (B, H, Q, D).

    mask: True where a query sees a key, broadcast to (B, H, Q, S). None: causal, Q == S.
    """
    if rule.softcap is None and rule.sinks is None:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=rule.scale, enable_gqa=True
        )
    num_groups = q.shape[1] // k.shape[1]
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril_()
    scores = q.float() @ k.repeat_interleave(num_groups, 1).float().transpose(-1, -2) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh_(scores / rule.softcap) * rule.softcap
    weights, _ = weigh_scores(scores.masked_fill_(~mask, -torch.inf), rule.sinks)
    return (weights @ v.repeat_interleave(num_groups, 1).float()).to(q.dtype)
