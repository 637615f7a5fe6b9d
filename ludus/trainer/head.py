"""The vocabulary head: log-probabilities of given tokens without ever holding all logits.

Knows: the head's weight, temperature, softcap.  Knows not: which loss follows.
Invariant: at most LOGIT_BYTES of logits are alive, however many tokens are asked for.

The logits of a chunk come out of one matrix product in the model's dtype, as the engine computes them; what follows
runs in fp32 on tiles of a few rows that stay in the processor's cache. N: tokens, V: vocabulary, D: width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Enough rows a chunk for a fast product, little beside the weights of the smallest models.
LOGIT_BYTES = 64 << 20
# A tile in fp32 and its exponential together fit into the second-level cache of two cores.
_TILE_BYTES = 1 << 20
# Rows of the head's gradient made at a time; a multiple of every vector width.
_GRAD_ROWS = 4096


class VocabularyHead:
    """Log-probabilities and entropies over the vocabulary, differentiable by the hidden states and the weight."""

    def __init__(self, weight_VD: Tensor, *, softcap: float | None, logit_bytes: int = LOGIT_BYTES) -> None:
        self.weight_VD = weight_VD
        self.softcap = softcap
        self.chunk_rows = max(1, logit_bytes // (4 * weight_VD.shape[0]))
        self.tile_rows = max(1, _TILE_BYTES // (4 * weight_VD.shape[0]))
        self._buffer: Tensor | None = None
        self._kept: object = None

    def __call__(
        self, hidden_ND: Tensor, targets_N: Tensor, temperatures_N: Tensor, *, sink_VD: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target and entropy of its distribution, both fp32 of shape (N,).

        Only the log-probabilities carry a gradient. sink_VD: fp32 tensor that the weight's gradient is added to in the
        backward pass; None: the weight is frozen.
        """
        logprobs_N, entropies_N = _HeadFunction.apply(  # type: ignore[no-untyped-call]
            hidden_ND, targets_N, temperatures_N, self, sink_VD
        )
        return logprobs_N, entropies_N

    def logits(self, hidden_ND: Tensor, key: object) -> Tensor:
        """Raw logits of one chunk, in a buffer that the next call overwrites unless it asks for the same `key`."""
        num_rows = len(hidden_ND)
        if self._buffer is None or len(self._buffer) < num_rows:
            self._buffer = hidden_ND.new_empty(num_rows, self.weight_VD.shape[0])
        logits_CV = self._buffer[:num_rows]
        if self._kept != key:
            torch.mm(hidden_ND, self.weight_VD.detach().t(), out=logits_CV)
        self._kept = key
        return logits_CV

    def forget(self) -> None:
        """The buffer has been used for something else than logits."""
        self._kept = None


class _HeadFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        head: VocabularyHead,
        sink_VD: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        num_tokens = len(hidden_ND)
        ctx.key = object()
        logprobs_N, entropies_N, log_norms_N = torch.empty(3, num_tokens, device=hidden_ND.device)
        for chunk in _slices(num_tokens, head.chunk_rows):
            logits_CV = head.logits(hidden_ND[chunk], (ctx.key, chunk.start))
            for tile in _slices(logits_CV.shape[0], head.tile_rows):
                rows = slice(chunk.start + tile.start, chunk.start + tile.stop)
                scaled_TV, _ = _scaled(logits_CV[tile], temperatures_N[rows], head.softcap)
                logprobs_N[rows], entropies_N[rows], log_norms_N[rows] = _summaries(scaled_TV, targets_N[rows])
        ctx.save_for_backward(hidden_ND, targets_N, temperatures_N, log_norms_N)
        ctx.head, ctx.sink_VD = head, sink_VD
        ctx.mark_non_differentiable(entropies_N)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, targets_N, temperatures_N, log_norms_N = ctx.saved_tensors
        head: VocabularyHead = ctx.head
        grad_hidden_ND = torch.empty_like(hidden_ND)
        scale_N = grad_N / temperatures_N
        # backwards, because the buffer still holds the logits of the last chunk
        for chunk in reversed(_slices(len(hidden_ND), head.chunk_rows)):
            logits_CV = head.logits(hidden_ND[chunk], (ctx.key, chunk.start))
            for tile in _slices(logits_CV.shape[0], head.tile_rows):
                rows = slice(chunk.start + tile.start, chunk.start + tile.stop)
                scaled_TV, slope_TV = _scaled(logits_CV[tile], temperatures_N[rows], head.softcap)
                grad_TV = scaled_TV.sub_(log_norms_N[rows, None]).exp_().mul_(-scale_N[rows, None])
                grad_TV.scatter_add_(1, targets_N[rows, None], scale_N[rows, None])
                logits_CV[tile] = grad_TV if slope_TV is None else grad_TV.mul_(slope_TV)
            head.forget()
            torch.mm(logits_CV, head.weight_VD.detach(), out=grad_hidden_ND[chunk])
            if ctx.sink_VD is not None:
                for part in _slices(logits_CV.shape[1], _GRAD_ROWS):
                    ctx.sink_VD[part].add_(logits_CV[:, part].t() @ hidden_ND[chunk])
        return grad_hidden_ND, None, None, None, None


def _scaled(logits_TV: Tensor, temperatures_T: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Capped logits over temperature in fp32, and the cap's derivative (None without a cap)."""
    scaled_TV = logits_TV.to(torch.float32, copy=True)
    slope_TV = None
    if softcap is not None:
        scaled_TV.div_(softcap).tanh_()
        slope_TV = 1 - scaled_TV * scaled_TV
        scaled_TV.mul_(softcap)
    return scaled_TV.div_(temperatures_T[:, None]), slope_TV


def _summaries(scaled_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the targets, entropy, log of the normaliser; overwrites `scaled_TV`."""
    top_T = scaled_TV.amax(-1)
    scaled_TV.sub_(top_T[:, None])
    target_T = scaled_TV.gather(1, targets_T[:, None])[:, 0]
    weight_TV = torch.exp(scaled_TV)
    total_T = weight_TV.sum(-1)
    log_total_T = total_T.log()
    entropy_T = log_total_T - (weight_TV[:, None] @ scaled_TV[:, :, None])[:, 0, 0] / total_T
    return target_T - log_total_T, entropy_T, log_total_T + top_T


def _slices(length: int, size: int) -> list[slice]:
    """0..length in runs of equal length up to one, none longer than `size`."""
    num_runs = -(-length // size)
    return [slice(i * length // num_runs, (i + 1) * length // num_runs) for i in range(num_runs)]
