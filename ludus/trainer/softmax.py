"""Softmax over the vocabulary as one interface with two implementations: native and torch's operations.

Knows: logits of given targets.  Knows not: where logits come from, which loss follows.

C: rows of logits, T: rows of a tile, V: vocabulary.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from torch import Tensor

from ludus.native.build import build_library, obtain
from ludus.native.head import NativeSoftmax

_log = logging.getLogger(__name__)
# A tile in fp32 and its exponential together fit into the second-level cache of two cores.
_TILE_BYTES = 1 << 20


class VocabularySoftmax(Protocol):
    """What follows the logits, in fp32. Logits are first capped (softcap; None: not), then divided by temperatures."""

    def summarise(
        self, logits_CV: Tensor, targets_C: Tensor, temperatures_C: Tensor, softcap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of the targets, entropy, log of the normaliser: each fp32 of shape (C,)."""

    def differentiate(
        self,
        logits_CV: Tensor,
        targets_C: Tensor,
        temperatures_C: Tensor,
        softcap: float | None,
        *,
        log_norms_C: Tensor,
        slopes_C: Tensor,
    ) -> None:
        """Overwrites the logits by slopes times the derivative of the targets' log-probabilities."""


def choose_softmax(weight: Tensor) -> VocabularySoftmax:
    """The native implementation for a head with the type and device of `weight`, torch's operations elsewhere."""
    native = obtain(lambda: NativeSoftmax(build_library("head")), NativeSoftmax.refusal(weight))
    if not isinstance(native, str):
        return native
    _log.info("the softmax over the vocabulary runs on torch's operations, which are slower: %s", native)
    return TorchSoftmax()


class TorchSoftmax:
    """torch's operations, on every device and type; on the CPU on tiles of rows that stay in its cache."""

    def __repr__(self) -> str:
        return "<TorchSoftmax>"

    def summarise(
        self, logits_CV: Tensor, targets_C: Tensor, temperatures_C: Tensor, softcap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs_C, entropies_C, log_norms_C = torch.empty(3, len(logits_CV), device=logits_CV.device)
        for tile in _tiles(logits_CV):
            scaled_TV, _ = _scaled(logits_CV[tile], temperatures_C[tile], softcap)
            logprobs_C[tile], entropies_C[tile], log_norms_C[tile] = _summaries(scaled_TV, targets_C[tile])
        return logprobs_C, entropies_C, log_norms_C

    def differentiate(
        self,
        logits_CV: Tensor,
        targets_C: Tensor,
        temperatures_C: Tensor,
        softcap: float | None,
        *,
        log_norms_C: Tensor,
        slopes_C: Tensor,
    ) -> None:
        scales_C = slopes_C / temperatures_C
        for tile in _tiles(logits_CV):
            scaled_TV, slope_TV = _scaled(logits_CV[tile], temperatures_C[tile], softcap)
            grad_TV = scaled_TV.sub_(log_norms_C[tile, None]).exp_().mul_(-scales_C[tile, None])
            grad_TV.scatter_add_(1, targets_C[tile, None], scales_C[tile, None])
            logits_CV[tile] = grad_TV if slope_TV is None else grad_TV.mul_(slope_TV)


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


def _tiles(logits_CV: Tensor) -> list[slice]:
    num_rows, vocabulary = logits_CV.shape
    # a card works on all rows at once
    size = max(1, _TILE_BYTES // (4 * vocabulary)) if logits_CV.device.type == "cpu" else num_rows
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]
