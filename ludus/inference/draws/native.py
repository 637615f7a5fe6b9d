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

from ludus.inference.draws.base import DrawRequest
from ludus.inference.sequence import Draw
from ludus.native.library import ADDRESS, COUNT, DTYPES, SIZE, load_library, refuse

# `Request` of sampling.cpp: seven numbers, then five counts and places
_ROW = struct.Struct("=7d5q")


class _Logits(ctypes.Structure):
    _fields_ = [
        ("values", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("softcap", ctypes.c_float),
        ("dtype", ctypes.c_int32),
    ]


class NativeDraws:
    """The fast kernel, for fp32 and bf16 logits on the CPU. A row's draw does not depend on the rows beside it."""

    def __init__(self, library: Path) -> None:
        at, size = ADDRESS, SIZE
        signature = (at, ctypes.c_char_p, size, at, at, at, size, at, at, COUNT)
        self._draw = load_library(library, {"ludus_draw": signature}).ludus_draw

    def __repr__(self) -> str:
        return "<NativeDraws>"

    @staticmethod
    def refusal(head: Tensor) -> str | None:
        """Why the kernel cannot draw from logits of such a head. None: it can."""
        return refuse(head.device, head.dtype)

    def draw(self, logits_NV: Tensor, requests: Sequence[DrawRequest], *, softcap: float | None) -> list[Draw]:
        num_rows, vocab_size = logits_NV.shape
        assert num_rows == len(requests) and logits_NV.stride(1) == 1, f"{num_rows} rows for {len(requests)} requests"
        num_top = max(request.sampling.top_logprobs for request in requests)
        texts = array("q")
        rows = b"".join([_packed(request, texts) for request in requests])
        ids, logprobs = array("q", bytes(8 * num_rows)), array("d", bytes(8 * num_rows))
        top_ids, top_logprobs = array("q", bytes(8 * num_rows * num_top)), array("d", bytes(8 * num_rows * num_top))
        logits = _Logits(logits_NV.data_ptr(), logits_NV.stride(0), vocab_size, softcap or 0.0, DTYPES[logits_NV.dtype])
        self._draw(
            ctypes.byref(logits), rows, num_rows, _address(texts), _address(ids), _address(logprobs),
            num_top, _address(top_ids), _address(top_logprobs), torch.get_num_threads(),
        )  # fmt: skip
        if not num_top:
            return [Draw(token_id, logprob) for token_id, logprob in zip(ids, logprobs, strict=True)]
        draws = []
        for row, request in enumerate(requests):
            own = slice(row * num_top, row * num_top + request.sampling.top_logprobs)
            top = tuple(zip(top_ids[own], top_logprobs[own], strict=True))
            draws.append(Draw(ids[row], logprobs[row], top))
        return draws


def _packed(request: DrawRequest, texts: array[int]) -> bytes:
    """`Request` of one row. Appends to `texts` what its penalties read."""
    sampling = request.sampling
    text_from = len(texts)
    answer_from = text_from + request.num_prompt
    if sampling.penalises:
        texts.extend(request.token_ids)
    return _ROW.pack(
        request.uniform, sampling.temperature, sampling.top_p, sampling.min_p,
        sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty,
        sampling.top_k, sampling.top_logprobs, text_from, answer_from, len(texts),
    )  # fmt: skip


def _address(buffer: array[int] | array[float]) -> int:
    return buffer.buffer_info()[0]
