"""Draws with torch's own operations, for all rows at once; works wherever torch works.

Shapes: N rows, V vocabulary, B blocks of the vocabulary, C tokens of a block; R some of the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from ludus.algorithms.exact import exact, exact_device
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
        num_rows, device = len(requests), self._probs_NV.device
        padded_NV = self._probs_NV[:num_rows]
        probs_NV = padded_NV[:, : self._vocab_size]
        _shift(logits_NV, probs_NV, softcap)
        changed = [row for row, each in enumerate(requests) if _is_changed(each)]
        if changed:
            changed_RV = capped(logits_NV[changed].to(torch.float32), softcap)
            change(changed_RV, [requests[row] for row in changed])
            probs_NV[changed] = changed_RV.sub_(changed_RV.amax(-1, keepdim=True))
        greedy = [row for row, request in enumerate(requests) if request.sampling.is_greedy]
        greedy_ids = probs_NV[greedy].argmax(-1) if greedy else None
        temperatures = [request.sampling.temperature or 1.0 for request in requests]
        if any(temperature != 1.0 for temperature in temperatures):
            probs_NV.div_(torch.tensor(temperatures, device=device)[:, None])
        probs_NV.exp_()
        _truncate(probs_NV, requests)
        uniforms = [request.uniform for request in requests]
        uniforms_N = torch.tensor(uniforms, dtype=torch.float64, device=exact_device(device))
        ids_N, total_N = inverse_cdf(padded_NV.view(num_rows, -1, _BLOCK_TOKENS), uniforms_N)
        if greedy_ids is not None:
            ids_N[greedy] = greedy_ids.to(ids_N.device)
        logprobs_N = (exact(probs_NV.gather(1, ids_N.to(device)[:, None])[:, 0]) / total_N).log()
        tops = _top_logprobs(probs_NV, total_N, requests)
        kept = _kept_ids(probs_NV, requests)
        # together, because a card is waited for each time something is read from it
        drawn = zip(*torch.stack((ids_N.double(), logprobs_N)).tolist(), tops, kept, strict=True)
        return [SampledToken(int(token_id), logprob, top, kept_ids) for token_id, logprob, top, kept_ids in drawn]


def inverse_cdf(probs_NBC: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Drawn ids (N,) and the sums of the rows (N,), float64, both on `exact_device`.

    probs_NBC: unnormalised, zero where a token is cut; uniforms_N in [0, 1), float64, on that device.
    A token of probability zero is never drawn.
    """
    cumulative_NB = _running_sums(probs_NBC.sum(-1))
    total_N1 = cumulative_NB[:, -1:]
    wanted_N1 = uniforms_N[:, None] * total_N1
    block_N1 = torch.searchsorted(cumulative_NB, wanted_N1, right=True).clamp_(max=probs_NBC.shape[1] - 1)
    before_N1 = torch.where(block_N1 > 0, cumulative_NB.gather(1, (block_N1 - 1).clamp_(min=0)), 0.0)
    rows_N = torch.arange(len(probs_NBC), device=probs_NBC.device)
    block_NC = probs_NBC[rows_N, block_N1[:, 0].to(rows_N.device)].to(block_N1.device)
    idx_N1 = torch.searchsorted(_running_sums(block_NC), wanted_N1 - before_N1, right=True)
    idx_N1.clamp_(max=probs_NBC.shape[2] - 1)
    # rounding of the block's sum may point just past its last possible token
    cut_N1 = block_NC.gather(1, idx_N1) == 0
    indices_C = torch.arange(block_NC.shape[1], device=block_NC.device)
    idx_N1 = torch.where(cut_N1, ((block_NC > 0) * indices_C).argmax(-1, keepdim=True), idx_N1)
    return (block_N1 * probs_NBC.shape[2] + idx_N1)[:, 0], total_N1[:, 0]


def _running_sums(values_NK: Tensor) -> Tensor:
    """Sums along each row in float64. A card sums a single row in parts whose order is not fixed, but not two rows."""
    exact_NK = exact(values_NK)
    if exact_NK.device.type == "cpu" or len(exact_NK) > 1:
        return exact_NK.cumsum(-1)
    return exact_NK.expand(2, -1).cumsum(-1)[:1]


def _is_changed(request: SamplingRequest) -> bool:
    return bool(request.sampling.penalises or request.sampling.logit_bias or request.allowed is not None)


def change(logits_RV: Tensor, requests: Sequence[SamplingRequest]) -> None:
    """Change each row's logits by its penalties and biases; -inf where a token is not allowed. Modifies `logits_RV`.

    For all rows at once: a card takes longer to be told of one row than to change hundreds.
    Source: CTRL (arXiv 1909.05858) eq. 2 for repetition, over prompt and answer; OpenAI's API reference for frequency
    and presence, over the answer.
    """
    device = logits_RV.device
    repeated, shifted, biased = _Entries(), _Entries(), _Entries()
    for row, request in enumerate(requests):
        sampling = request.sampling
        if sampling.repetition_penalty != 1.0:
            seen = set(request.token_ids)
            repeated.add(row, seen, [sampling.repetition_penalty] * len(seen))
        if sampling.frequency_penalty or sampling.presence_penalty:
            counts = Counter(request.token_ids[request.num_prompt :])
            shifts = [-sampling.frequency_penalty * count - sampling.presence_penalty for count in counts.values()]
            shifted.add(row, counts, shifts)
        biased.add(row, [token for token, _ in sampling.logit_bias], [bias for _, bias in sampling.logit_bias])
    if repeated.rows:
        at, penalties = repeated.tensors(device)
        logits = logits_RV[at]
        logits_RV[at] = torch.where(logits > 0, logits / penalties, logits * penalties)
    for added in (shifted, biased):
        if added.rows:
            at, numbers = added.tensors(device)
            logits_RV[at] += numbers
    masked = [(row, each.allowed) for row, each in enumerate(requests) if each.allowed is not None]
    if masked:
        rows, masks = zip(*masked, strict=True)
        num_bytes = max(map(len, masks))
        words = bitmask_words(b"".join(mask.ljust(num_bytes, b"\0") for mask in masks), len(masks), device)
        allowed_MV = unpack_bitmask(words, logits_RV.shape[1])
        logits_RV[list(rows)] = logits_RV[list(rows)].masked_fill_(~allowed_MV, -torch.inf)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Numbers for tokens of rows; each token of a row comes once."""

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    def add(self, row: int, ids: Collection[int], numbers: Sequence[float]) -> None:
        self.rows.extend([row] * len(ids))
        self.ids.extend(ids)
        self.numbers.extend(numbers)

    def tensors(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rows and ids, and the numbers in fp32."""
        at = torch.tensor([self.rows, self.ids], dtype=torch.int64, device=device)
        return (at[0], at[1]), torch.tensor(self.numbers, dtype=torch.float32, device=device)


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
    before_NK = _running_sums(best_NK) - best_NK
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
        own_RV = probs_RV.to(exact_device(probs_RV.device))
        thresholds_R = kept_thresholds(own_RV, [requests[row].sampling for row in rows]).to(probs_RV.device)
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
    logprobs_NK = (exact(best.values) / total_N[:, None]).log()
    return [
        top_pairs(ids[: request.sampling.top_logprobs], logprobs[: request.sampling.top_logprobs])
        for ids, logprobs, request in zip(best.indices.tolist(), logprobs_NK.tolist(), requests, strict=True)
    ]
