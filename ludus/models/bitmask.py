"""Sets of tokens as bits, the form in which a grammar says what may come next.

Knows: tensors.  Knows not: grammars, vocabularies.
Shapes: N sets, W words of 32 bits, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def bitmask_words(masks: bytes, num_masks: int, device: torch.device) -> Tensor:
    """Masks that lie one behind the other, in native 32-bit words, as int32 of shape (N, W)."""
    return torch.frombuffer(bytearray(masks), dtype=torch.int32).view(num_masks, -1).to(device)


def unpack_bitmask(words_NW: Tensor, vocab_size: int) -> Tensor:
    """Whether each token is in each set, bool of shape (N, V); tokens beyond the words are in none."""
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=words_NW.device)
    bits_NV = (words_NW[:, :, None] >> shifts & 1).bool().flatten(1)[:, :vocab_size]
    missing = vocab_size - bits_NV.shape[1]
    return torch.nn.functional.pad(bits_NV, (0, missing)) if missing else bits_NV
