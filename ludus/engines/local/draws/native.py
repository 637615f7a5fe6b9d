"""Draws in C++: sampling.cpp through its plain C interface.

Knows: the compiled library, the layout of its records.  Knows not: how it is compiled.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ludus.engines.local.draws.base import SamplingRequest, top_pairs
from ludus.engines.sequence import SampledToken
from ludus.kernels.library import ADDRESS, COUNT, DTYPES, FRACTION, SIZE, load_library
from ludus.types import MAX_KEPT_IDS

# `Request` of sampling.cpp: seven numbers, then ten counts and indices
_ROW = struct.Struct("=7d10q")
_NONE = -1


class _Logits(ctypes.Structure):
    _fields_ = [
        ("values", ADDRESS),
        ("row_stride", SIZE),
        ("vocab_size", SIZE),
        ("softcap", FRACTION),
        ("dtype", COUNT),
    ]


class _Extras(ctypes.Structure):
    """What requests refer to by index."""

    _fields_ = [("texts", ADDRESS), ("bias_ids", ADDRESS), ("biases", ADDRESS), ("masks", ctypes.c_char_p)]


class _Results(ctypes.Structure):
    _fields_ = [
        ("ids", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("num_top", ctypes.c_int64),
        ("top_ids", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
        ("max_kept", ctypes.c_int64),
        ("kept_ids", ctypes.c_void_p),
        ("kept_counts", ctypes.c_void_p),
    ]


class NativeSampling:
    """The fast kernel, for fp32 and bf16 logits on the CPU. A row's draw does not depend on the rows beside it."""

    def __init__(self, library: Path) -> None:
        signature = (ADDRESS, ctypes.c_char_p, SIZE, ADDRESS, ADDRESS, COUNT)
        self._draw = load_library(library, {"ludus_draw": signature}).ludus_draw

    def __repr__(self) -> str:
        return "<NativeSampling>"

    def draw(
        self, logits_NV: Tensor, requests: Sequence[SamplingRequest], *, softcap: float | None
    ) -> list[SampledToken]:
        num_rows, vocab_size = logits_NV.shape
        assert num_rows == len(requests) and logits_NV.stride(1) == 1, f"{num_rows} rows for {len(requests)} requests"
        batch = _Batch()
        rows = b"".join([batch.packed(request) for request in requests])
        results = _Buffers(num_rows, max(request.sampling.top_logprobs for request in requests), batch.num_kept)
        logits = _Logits(logits_NV.data_ptr(), logits_NV.stride(0), vocab_size, softcap or 0.0, DTYPES[logits_NV.dtype])
        self._draw(
            ctypes.byref(logits), rows, num_rows, ctypes.byref(batch.extras()), ctypes.byref(results.described()),
            torch.get_num_threads(),
        )  # fmt: skip
        return results.draws(requests)


class _Batch:
    """Requests as the kernel reads them, and what they refer to by index."""

    def __init__(self) -> None:
        self.num_kept = 0
        """Rows that ask for what was kept."""
        self._texts = array("q")
        self._bias_ids = array("q")
        self._biases = array("f")
        self._masks: list[bytes] = []
        self._num_words = 0

    def packed(self, request: SamplingRequest) -> bytes:
        """`Request` of the next row."""
        sampling = request.sampling
        text_from, bias_from = len(self._texts), len(self._bias_ids)
        mask_from, num_words, kept_at = _NONE, 0, _NONE
        if sampling.penalises:
            self._texts.extend(request.token_ids)
        if sampling.logit_bias:
            self._bias_ids.extend([token_id for token_id, _ in sampling.logit_bias])
            self._biases.extend([bias for _, bias in sampling.logit_bias])
        if request.allowed is not None:
            mask_from, num_words = self._num_words, len(request.allowed) // 4
            self._masks.append(request.allowed)
            self._num_words += num_words
        if sampling.cuts:
            kept_at, self.num_kept = self.num_kept, self.num_kept + 1
        return _ROW.pack(
            request.uniform, sampling.temperature, sampling.top_p, sampling.min_p,
            sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty,
            sampling.top_k, sampling.top_logprobs, text_from, text_from + request.num_prompt, len(self._texts),
            bias_from, len(self._bias_ids), mask_from, num_words, kept_at,
        )  # fmt: skip

    def extras(self) -> _Extras:
        """Addresses, valid while this object lives."""
        masks = b"".join(self._masks)
        return _Extras(_address(self._texts), _address(self._bias_ids), _address(self._biases), masks)


class _Buffers:
    """Where the kernel writes its results: `num_top` pairs a row, MAX_KEPT_IDS ids a row that asks for them."""

    def __init__(self, num_rows: int, num_top: int, num_kept: int) -> None:
        self._num_top = num_top
        self._ids, self._logprobs = array("q", bytes(8 * num_rows)), array("d", bytes(8 * num_rows))
        self._top_ids = array("q", bytes(8 * num_rows * num_top))
        self._top_logprobs = array("d", bytes(8 * num_rows * num_top))
        self._kept_ids = array("q", bytes(8 * num_kept * MAX_KEPT_IDS))
        self._kept_counts = array("q", bytes(8 * num_kept))

    def described(self) -> _Results:
        return _Results(
            _address(self._ids), _address(self._logprobs),
            self._num_top, _address(self._top_ids), _address(self._top_logprobs),
            MAX_KEPT_IDS, _address(self._kept_ids), _address(self._kept_counts),
        )  # fmt: skip

    def draws(self, requests: Sequence[SamplingRequest]) -> list[SampledToken]:
        """What was written, row by row."""
        if not self._num_top and not self._kept_counts:
            return [
                SampledToken(token_id, logprob) for token_id, logprob in zip(self._ids, self._logprobs, strict=True)
            ]
        draws, kept_at = [], 0
        for row, request in enumerate(requests):
            top = slice(row * self._num_top, row * self._num_top + request.sampling.top_logprobs)
            kept_ids: tuple[int, ...] | None = ()
            if request.sampling.cuts:
                start, count = kept_at * MAX_KEPT_IDS, self._kept_counts[kept_at]
                kept_ids = tuple(self._kept_ids[start : start + count]) if count <= MAX_KEPT_IDS else None
                kept_at += 1
            pairs = top_pairs(self._top_ids[top], self._top_logprobs[top])
            draws.append(SampledToken(self._ids[row], self._logprobs[row], pairs, kept_ids))
        return draws


def _address(buffer: array[int] | array[float]) -> int:
    return buffer.buffer_info()[0]
