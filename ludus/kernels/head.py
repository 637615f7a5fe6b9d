"""Softmax over the vocabulary in C++: head.cpp through its plain C interface.

Knows: the compiled library, tensors on the CPU.  Knows not: autograd, where logits come from.
Invariant: a row's bits depend on that row alone, not on its neighbours or on the number of threads.

C: rows of logits, V: vocabulary.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.library import ADDRESS, COUNT, DTYPES, FRACTION, SIZE, load_library


class _Logits(ctypes.Structure):
    _fields_ = [("data", ADDRESS), ("num_rows", SIZE), ("vocabulary", SIZE), ("softcap", FRACTION), ("dtype", COUNT)]


class _Choices(ctypes.Structure):
    _fields_ = [("targets", ADDRESS), ("temperatures", ADDRESS)]


class NativeSoftmax:
    """The fast implementation of VocabularySoftmax (ludus/trainer/softmax.py), for fp32 and bf16 on the CPU."""

    def __init__(self, library: Path) -> None:
        signatures = {
            "ludus_summarise": (ADDRESS, ADDRESS, ADDRESS, COUNT),
            "ludus_differentiate": (ADDRESS, ADDRESS, ADDRESS, ADDRESS, COUNT),
        }
        loaded = load_library(library, signatures)
        self._summarise, self._differentiate = loaded.ludus_summarise, loaded.ludus_differentiate

    def summarise(
        self, logits_CV: Tensor, targets_C: Tensor, temperatures_C: Tensor, softcap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        results_3C = torch.empty(3, len(logits_CV))
        logits, choices = _described(logits_CV, targets_C, temperatures_C, softcap)
        self._summarise(ctypes.byref(logits), ctypes.byref(choices), results_3C.data_ptr(), torch.get_num_threads())
        return results_3C[0], results_3C[1], results_3C[2]

    def differentiate(
        self,
        logits_CV: Tensor,
        targets_C: Tensor,
        temperatures_C: Tensor,
        softcap: float | None,
        *,
        log_norms_C: Tensor,
        slopes_C: Tensor,
        entropy_2C: Tensor | None = None,
    ) -> None:
        log_norms_C = log_norms_C.contiguous()
        entropy_2C = slopes_C.new_zeros(2, len(slopes_C)) if entropy_2C is None else entropy_2C
        slopes_3C = torch.cat([slopes_C[None], entropy_2C])
        logits, choices = _described(logits_CV, targets_C, temperatures_C, softcap)
        self._differentiate(
            ctypes.byref(logits), ctypes.byref(choices), log_norms_C.data_ptr(), slopes_3C.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip


def _described(
    logits_CV: Tensor, targets_C: Tensor, temperatures_C: Tensor, softcap: float | None
) -> tuple[_Logits, _Choices]:
    assert all(each.is_contiguous() for each in (logits_CV, targets_C, temperatures_C)), "rows must lie side by side"
    assert targets_C.dtype == torch.int64 and temperatures_C.dtype == torch.float32, "targets are ids, the rest fp32"
    num_rows, vocabulary = logits_CV.shape
    logits = _Logits(logits_CV.data_ptr(), num_rows, vocabulary, softcap or 0.0, DTYPES[logits_CV.dtype])
    return logits, _Choices(targets_C.data_ptr(), temperatures_C.data_ptr())
