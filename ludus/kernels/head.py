"""Softmax over the vocabulary in C++: head.cpp through its plain C interface.

Knows: the compiled library, tensors on the CPU.  Knows not: autograd, where logits come from.
Invariant: a row's bits depend on that row alone, not on its neighbours or on the number of threads.

C: rows of logits, V: vocabulary.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.library import ADDRESS, COUNT, DTYPES, FRACTION, SIZE, load_library


class _Logits(ctypes.Structure):
    _fields_ = [("data", ADDRESS), ("num_rows", SIZE), ("vocabulary", SIZE), ("softcap", FRACTION), ("dtype", COUNT)]


class _Choices(ctypes.Structure):
    _fields_ = [("targets", ADDRESS), ("temperatures", ADDRESS)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token sampled from each row of logits, and the sampling parameters."""

    ids_C: Tensor
    """int64."""
    temperatures_C: Tensor
    """fp32."""
    softcap: float | None
    """Cap of the logits, applied before temperatures. None: no cap."""

    def __getitem__(self, rows: slice) -> Drawn:
        return Drawn(self.ids_C[rows], self.temperatures_C[rows], self.softcap)


@dataclass(frozen=True, slots=True)
class Slopes:
    """Derivatives of a loss with respect to the results of each row's softmax, all fp32."""

    log_norms_C: Tensor
    """Logs of the normalisers, from the forward pass."""
    by_logprob_C: Tensor
    entropy_2C: Tensor | None = None
    """Derivatives with respect to the entropies, and the entropies. None: the loss does not depend on them."""

    def __getitem__(self, rows: slice) -> Slopes:
        entropy_2C = None if self.entropy_2C is None else self.entropy_2C[:, rows]
        return Slopes(self.log_norms_C[rows], self.by_logprob_C[rows], entropy_2C)


class NativeSoftmax:
    """The fast implementation of VocabularySoftmax (ludus/trainer/softmax.py), for fp32 and bf16 on the CPU."""

    def __init__(self, library: Path) -> None:
        signatures = {
            "ludus_summarise": (ADDRESS, ADDRESS, ADDRESS, COUNT),
            "ludus_differentiate": (ADDRESS, ADDRESS, ADDRESS, COUNT),
        }
        loaded = load_library(library, signatures)
        self._summarise, self._differentiate = loaded.ludus_summarise, loaded.ludus_differentiate

    def summarise(self, logits_CV: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        results_3C = torch.empty(3, len(logits_CV))
        logits, choices = _described(logits_CV, drawn)
        self._summarise(ctypes.byref(logits), ctypes.byref(choices), results_3C.data_ptr(), torch.get_num_threads())
        return results_3C[0], results_3C[1], results_3C[2]

    def differentiate(self, logits_CV: Tensor, drawn: Drawn, slopes: Slopes) -> None:
        num_rows = len(logits_CV)
        entropy_2C = (
            logits_CV.new_zeros(2, num_rows, dtype=torch.float32) if slopes.entropy_2C is None else slopes.entropy_2C
        )
        slopes_4C = torch.cat([slopes.log_norms_C[None], slopes.by_logprob_C[None], entropy_2C])
        logits, choices = _described(logits_CV, drawn)
        self._differentiate(ctypes.byref(logits), ctypes.byref(choices), slopes_4C.data_ptr(), torch.get_num_threads())


def _described(logits_CV: Tensor, drawn: Drawn) -> tuple[_Logits, _Choices]:
    ids_C, temperatures_C = drawn.ids_C, drawn.temperatures_C
    assert all(each.is_contiguous() for each in (logits_CV, ids_C, temperatures_C)), "tensors must be contiguous"
    assert ids_C.dtype == torch.int64 and temperatures_C.dtype == torch.float32, "ids are int64, temperatures fp32"
    num_rows, vocabulary = logits_CV.shape
    logits = _Logits(logits_CV.data_ptr(), num_rows, vocabulary, drawn.softcap or 0.0, DTYPES[logits_CV.dtype])
    return logits, _Choices(ids_C.data_ptr(), temperatures_C.data_ptr())
