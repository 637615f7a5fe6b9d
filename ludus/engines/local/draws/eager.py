"""Draws with torch's own operations, for all rows at once; works wherever torch works.

Shapes: N rows, V vocabulary, B blocks of the vocabulary, C tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from ludus.engines.local.draws.base import SamplingRequest, capped, top_pairs
from ludus.engines.sequence import SampledToken
from ludus.models.bitmask import bitmask_words, unpack_bitmask
from ludus.types import MAX_KEPT_IDS, Sampling

# 64 rows of a 49,152-token vocabulary make 12 MB of probabilities, which two cores still find in their caches. A card
# takes longer to begin an operation than to do it for hundreds of rows; with some copies 1 GB at most.
_ROW_BYTES = {"cpu": 12 << 20, "cuda": 256 << 20}
# About the square root of common vocabularies: as many blocks as tokens in a block.
_BLOCK_TOKENS = 256


class EagerSampling:
    """The fallback that needs no compiler, and what draws on a card. Keeps a buffer of so many rows; more are drawn in
    turn."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        num_blocks = -(-vocab_size // _BLOCK_TOKENS)
        # tokens that only fill up the last block keep the probability zero
        row_bytes = 4 * num_blocks * _BLOCK_TOKENS
        self._num_rows = max(1, _ROW_BYTES.get(device.type, _ROW_BYTES["cpu"]) // row_bytes)
        self._probs_NV = torch.zeros(self._num_rows, num_blocks * _BLOCK_TOKENS, device=device)

    def __repr__(self) -> str:
        return "<EagerSampling>"

    def draw(
        self, logits_NV: Tensor, requests: Sequence[SamplingRequest], *, softcap: float | None
    ) -> list[SampledToken]:
        draws: list[SampledToken] = []
        for start in range(0, len(requests), self._num_rows):
            part = slice(start, start + self._num_rows)
            draws += self._draw_rows(logits_NV[part], requests[part], softcap)
        return draws

    def _draw_rows(
        self, logits_NV: Tensor, requests: Sequence[SamplingRequest], softcap: float | None
    ) -> list[SampledToken]:
        num_rows = len(requests)
        padded_NV = self._probs_NV[:num_rows]
        probs_NV = padded_NV[:, : self._vocab_size]
        _shift(logits_NV, probs_NV, softcap)
        for row, request in enumerate(requests):
            if request.sampling.penalises or request.sampling.logit_bias or request.allowed is not None:
                changed_V = change(capped(logits_NV[row].to(torch.float32, copy=True), softcap), request)
                torch.sub(changed_V, changed_V.max(), out=probs_NV[row])
        greedy = [row for row, request in enumerate(requests) if request.sampling.is_greedy]
        greedy_ids = probs_NV[greedy].argmax(-1).tolist() if greedy else []
        temperatures = [request.sampling.temperature or 1.0 for request in requests]
        if any(temperature != 1.0 for temperature in temperatures):
            probs_NV.div_(torch.tensor(temperatures, device=probs_NV.device)[:, None])
        probs_NV.exp_()
        _truncate(probs_NV, requests)
        uniforms = [request.uniform for request in requests]
        uniforms_N = torch.tensor(uniforms, dtype=torch.float64, device=probs_NV.device)
        ids_N, total_N = inverse_cdf(padded_NV.view(num_rows, -1, _BLOCK_TOKENS), uniforms_N)
        if greedy:
            ids_N[greedy] = torch.tensor(greedy_ids, device=ids_N.device)
        logprobs_N = (probs_NV.gather(1, ids_N[:, None])[:, 0] / total_N).log()
        tops = _top_logprobs(probs_NV, total_N, requests)
        kept = _kept_ids(probs_NV, requests)
        # together, because a card is waited for each time something is read from it
        drawn = zip(*torch.stack((ids_N.double(), logprobs_N.double())).tolist(), tops, kept, strict=True)
        return [SampledToken(int(token_id), logprob, top, kept_ids) for token_id, logprob, top, kept_ids in drawn]


def inverse_cdf(probs_NBC: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Drawn ids (N,) and the sums of the rows (N,), float64.

    probs_NBC: unnormalised, zero where a token is cut; uniforms_N in [0, 1), float64.
    A token of probability zero is never drawn.
    """
    cumulative_NB = probs_NBC.sum(-1).double().cumsum(-1)
    total_N1 = cumulative_NB[:, -1:]
    wanted_N1 = uniforms_N[:, None] * total_N1
    block_N1 = torch.searchsorted(cumulative_NB, wanted_N1, right=True).clamp_(max=probs_NBC.shape[1] - 1)
    before_N1 = torch.where(block_N1 > 0, cumulative_NB.gather(1, (block_N1 - 1).clamp_(min=0)), 0.0)
    block_NC = probs_NBC[torch.arange(len(probs_NBC), device=probs_NBC.device), block_N1[:, 0]]
    idx_N1 = torch.searchsorted(block_NC.double().cumsum(-1), wanted_N1 - before_N1, right=True)
    idx_N1.clamp_(max=probs_NBC.shape[2] - 1)
    # rounding of the block's sum may point just past its last possible token
    cut_N1 = block_NC.gather(1, idx_N1) == 0
    indices_C = torch.arange(block_NC.shape[1], device=block_NC.device)
    idx_N1 = torch.where(cut_N1, ((block_NC > 0) * indices_C).argmax(-1, keepdim=True), idx_N1)
    return (block_N1 * probs_NBC.shape[2] + idx_N1)[:, 0], total_N1[:, 0]


def change(logits_V: Tensor, request: SamplingRequest) -> Tensor:
    """Logits after penalties and biases; -inf where a token is not allowed. Overwrites what it is given."""
    sampling, device = request.sampling, logits_V.device
    if sampling.penalises:
        logits_V = penalise(logits_V, request)
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias, strict=True)
        logits_V[list(ids)] += torch.tensor(biases, device=device)
    if request.allowed is not None:
        (allowed_V,) = unpack_bitmask(bitmask_words(request.allowed, 1, device), len(logits_V))
        logits_V.masked_fill_(~allowed_V, -torch.inf)
    return logits_V


def penalise(logits_V: Tensor, request: SamplingRequest) -> Tensor:
    """Logits after repetition (prompt and answer), frequency and presence penalty (answer).

    Source: CTRL (arXiv 1909.05858) eq. 2 for repetition; OpenAI's API reference for the other two.
    """
    sampling, device = request.sampling, logits_V.device
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(request.token_ids)), device=device)
        seen_logits = logits_V[seen]
        penalty = sampling.repetition_penalty
        logits_V[seen] = torch.where(seen_logits > 0, seen_logits / penalty, seen_logits * penalty)
    answer = torch.tensor(list(request.token_ids[request.num_prompt :]), dtype=torch.int64, device=device)
    counts_V = torch.bincount(answer, minlength=logits_V.shape[0])
    return logits_V - sampling.frequency_penalty * counts_V - sampling.presence_penalty * (counts_V > 0)


def kept_thresholds(probs_NV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Smallest probability that each row keeps, (N,): top-k, then top-p of what is left, then min-p.

    probs_NV: unnormalised. Tokens that tie with the last one kept are kept too.
    """
    vocab_size, device = probs_NV.shape[1], probs_NV.device
    top_k_N = torch.tensor([each.top_k or vocab_size for each in samplings], device=device).clamp_(max=vocab_size)
    top_p_N, min_p_N = torch.tensor([[each.top_p, each.min_p] for each in samplings], device=device).T
    has_top_k_N, has_top_p_N = top_k_N < vocab_size, top_p_N < 1.0
    # All tokens below this together weigh less than what top-p cuts off, so they need no sorting; the half leaves room
    # for rounding.
    negligible_N = 0.5 * (1 - top_p_N) * probs_NV.sum(1) / vocab_size
    num_sorted_N = torch.where(has_top_k_N, top_k_N, (probs_NV >= negligible_N[:, None]).sum(1))
    num_sorted_N = torch.where(has_top_k_N | has_top_p_N, num_sorted_N, 1)
    best_NK = probs_NV.topk(int(num_sorted_N.max())).values
    is_left_NK = torch.arange(best_NK.shape[1], device=device) < top_k_N[:, None]
    best_NK = torch.where(is_left_NK, best_NK, 0.0)
    total_N = torch.where(has_top_k_N, best_NK.sum(1), probs_NV.sum(1))
    before_NK = best_NK.double().cumsum(1) - best_NK
    num_kept_N = (before_NK < (top_p_N * total_N)[:, None]).sum(1)
    last_N = torch.where(has_top_p_N, torch.minimum(num_kept_N.clamp_(min=1), top_k_N), top_k_N)
    last_kept_N = best_NK.gather(1, last_N.clamp(max=best_NK.shape[1])[:, None] - 1)[:, 0]
    cut_N = torch.where(has_top_k_N | has_top_p_N, last_kept_N, 0.0)
    return torch.maximum(min_p_N * best_NK[:, 0], cut_N)


def _shift(logits_NV: Tensor, out_NV: Tensor, softcap: float | None) -> None:
    """Writes the logits minus their row's largest, in fp32."""
    if softcap is None:
        torch.sub(logits_NV, logits_NV.amax(-1, keepdim=True).float(), out=out_NV)
    else:
        out_NV.copy_(logits_NV).div_(softcap).tanh_().mul_(softcap)
        out_NV.sub_(out_NV.amax(-1, keepdim=True))


def _truncate(probs_NV: Tensor, requests: Sequence[SamplingRequest]) -> None:
    """Sets what top-k, top-p and min-p cut to zero."""
    # greedy keeps the whole distribution: it draws nothing from it
    rows = [row for row, each in enumerate(requests) if each.sampling.truncates and not each.sampling.is_greedy]
    if rows:
        probs_RV = probs_NV[rows]
        thresholds_R = kept_thresholds(probs_RV, [requests[row].sampling for row in rows])
        probs_NV[rows] = probs_RV.masked_fill_(probs_RV < thresholds_R[:, None], 0.0)


def _kept_ids(probs_NV: Tensor, requests: Sequence[SamplingRequest]) -> list[tuple[int, ...] | None]:
    """Per row the tokens that could be drawn, where the sampling cuts. None: more than MAX_KEPT_IDS."""
    kept: list[tuple[int, ...] | None] = [()] * len(requests)
    rows = [row for row, each in enumerate(requests) if each.sampling.cuts]
    if not rows:
        return kept
    is_kept_RV = probs_NV[rows] > 0
    counts = is_kept_RV.sum(1).tolist()
    told = [at for at, count in enumerate(counts) if count <= MAX_KEPT_IDS]
    ids = iter(is_kept_RV[told].nonzero()[:, 1].tolist())
    for row, count in zip(rows, counts, strict=True):
        kept[row] = None if count > MAX_KEPT_IDS else tuple(islice(ids, count))
    return kept


def _top_logprobs(
    probs_NV: Tensor, total_N: Tensor, requests: Sequence[SamplingRequest]
) -> list[tuple[tuple[int, float], ...]]:
    num_top = max(request.sampling.top_logprobs for request in requests)
    if not num_top:
        return [()] * len(requests)
    best = probs_NV.topk(min(num_top, probs_NV.shape[1]))
    logprobs_NK = (best.values / total_N[:, None]).log()
    return [
        top_pairs(ids[: request.sampling.top_logprobs], logprobs[: request.sampling.top_logprobs])
        for ids, logprobs, request in zip(best.indices.tolist(), logprobs_NK.tolist(), requests, strict=True)
    ]
