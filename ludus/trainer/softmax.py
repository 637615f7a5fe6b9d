"""Softmax over the vocabulary: one interface with two implementations, native and torch's operations.

Knows: logits of given targets.  Knows not: where logits come from, which loss follows.

C: rows of logits, T: rows of a tile, V: vocabulary, U: ids whose logits are changed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ludus.kernels.build import build_library, obtain
from ludus.kernels.head import Drawn, NativeSoftmax, Slopes
from ludus.kernels.library import cost_level, refuse
from ludus.models.bitmask import unpack_bitmask

_log = logging.getLogger(__name__)
# A tile in fp32 and its exponential fit together into the second-level cache of two cores.
_TILE_BYTES = 1 << 20
NEVER = -1e30
"""Score of a token that cannot be drawn: its exponential is 0, and 0 times it is not NaN, as it would be for -inf."""


class VocabularySoftmax(Protocol):
    """The softmax of logits, in fp32. Logits are first softcapped (None: not), then divided by temperatures."""

    def summarise(self, logits_CV: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of the targets, entropy, log of the normaliser: each fp32 of shape (C,)."""

    def differentiate(self, logits_CV: Tensor, drawn: Drawn, slopes: Slopes) -> None:
        """Overwrite the logits with the derivative of a loss by them."""


def choose_softmax(weight: Tensor) -> VocabularySoftmax:
    """The native implementation, if there is one for the type and device of `weight`; else torch's operations."""
    native = obtain(lambda: NativeSoftmax(build_library("head")), refuse(weight.device, weight.dtype))
    if not isinstance(native, str):
        return native
    _log.log(
        cost_level(weight.device),
        "the softmax over the vocabulary runs on torch's operations, which are slower: %s",
        native,
    )
    return TorchSoftmax()


class TorchSoftmax:
    """Softmax by torch's operations, for every device and type; on the CPU in tiles of rows that fit its cache.

    Both arguments are for exactly the rows that it will be given:
    changed: ids, shape (U,), and how their logits are changed. None: none are.
    allowed_CW: the allowed tokens, as bits (ludus/models/bitmask.py). None: all are.
    """

    def __init__(self, changed: tuple[Tensor, LogitChange] | None = None, allowed_CW: Tensor | None = None) -> None:
        self._changed = changed
        self._allowed_CW = allowed_CW

    def summarise(self, logits_CV: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        logprobs_C, entropies_C, log_norms_C = torch.empty(3, len(logits_CV), device=logits_CV.device)
        for tile in _tiles(logits_CV):
            scaled_TV, _ = self._scaled(logits_CV, tile, drawn)
            logprobs_C[tile], entropies_C[tile], log_norms_C[tile] = summaries(scaled_TV, drawn.ids_C[tile])
        return logprobs_C, entropies_C, log_norms_C

    def differentiate(self, logits_CV: Tensor, drawn: Drawn, slopes: Slopes) -> None:
        for tile in _tiles(logits_CV):
            scaled_TV, slope_TV = self._scaled(logits_CV, tile, drawn)
            grad_TV = gradient_of(scaled_TV, drawn.ids_C[tile], drawn.temperatures_C[tile], slopes[tile])
            logits_CV[tile] = grad_TV if slope_TV is None else grad_TV.mul_(slope_TV)

    def _scaled(self, logits_CV: Tensor, tile: slice, drawn: Drawn) -> tuple[Tensor, Tensor | None]:
        """Capped and changed logits over temperature in fp32, and their derivative by the capped logits (None: 1)."""
        scaled_TV, slope_TV = softcapped(logits_CV[tile], drawn.softcap)
        if self._changed is not None:
            ids_U, change = self._changed
            changed_TU, factor_TU = change.rows(tile).apply(scaled_TV[:, ids_U])
            scaled_TV[:, ids_U] = changed_TU
            slope_TV = torch.ones_like(scaled_TV) if slope_TV is None else slope_TV
            slope_TV[:, ids_U] *= factor_TU
        scaled_TV.div_(drawn.temperatures_C[tile, None])
        if self._allowed_CW is not None:
            scaled_TV.masked_fill_(~unpack_bitmask(self._allowed_CW[tile], scaled_TV.shape[1]), NEVER)
        return scaled_TV, slope_TV


@dataclass(frozen=True, slots=True)
class LogitChange:
    """How penalties and biases change some capped logits; both tensors have a number for each logit."""

    repetition: Tensor
    """Positive logits are divided by it, others multiplied by it; 1 changes nothing."""
    shift: Tensor
    """Added afterwards."""

    def rows(self, rows: slice) -> LogitChange:
        return LogitChange(self.repetition[rows], self.shift[rows])

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The changed logits, and their derivative by the unchanged ones."""
        factor = torch.where(logits > 0, 1 / self.repetition, self.repetition)
        return logits * factor + self.shift, factor


def softcapped(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """A copy of the logits in fp32 under their cap, and the cap's derivative (None without a cap)."""
    copy = logits.to(torch.float32, copy=True)
    if softcap is None:
        return copy, None
    copy.div_(softcap).tanh_()
    slope = 1 - copy * copy
    return copy.mul_(softcap), slope


def summaries(scaled_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the targets, entropy, log of the normaliser; overwrites `scaled_TV`."""
    top_T = scaled_TV.amax(-1)
    scaled_TV.sub_(top_T[:, None])
    target_T = scaled_TV.gather(1, targets_T[:, None])[:, 0]
    weight_TV = torch.exp(scaled_TV)
    total_T = weight_TV.sum(-1)
    log_total_T = total_T.log()
    entropy_T = log_total_T - (weight_TV[:, None] @ scaled_TV[:, :, None])[:, 0, 0] / total_T
    return target_T - log_total_T, entropy_T, log_total_T + top_T


def gradient_of(scaled_TV: Tensor, ids_T: Tensor, temperatures_T: Tensor, slopes: Slopes) -> Tensor:
    """The derivative of a loss by each score before the division by temperature; overwrites the scores.

    The entropy's derivative by a score over temperature is -p (log p + H).
    """
    logprobs_TV = scaled_TV.sub_(slopes.log_norms_C[:, None])
    scales_T = slopes.by_logprob_C / temperatures_T
    if slopes.entropy_2C is None:
        grad_TV = logprobs_TV.exp_().mul_(-scales_T[:, None])
    else:
        slope_T, entropy_T = slopes.entropy_2C
        factor_TV = (logprobs_TV + entropy_T[:, None]).mul_((-slope_T / temperatures_T)[:, None])
        grad_TV = logprobs_TV.exp_().mul_(factor_TV.sub_(scales_T[:, None]))
    return grad_TV.scatter_add_(1, ids_T[:, None], scales_T[:, None])


def _tiles(logits_CV: Tensor) -> list[slice]:
    num_rows, vocabulary = logits_CV.shape
    # a GPU works on all rows at once
    size = max(1, _TILE_BYTES // (4 * vocabulary)) if logits_CV.device.type == "cpu" else num_rows
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]
