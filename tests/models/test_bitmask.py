from __future__ import annotations

from array import array

import torch

from ludus.models.bitmask import bitmask_words, unpack_bitmask


def test_bits_become_columns() -> None:
    """Bit i of word w is token 32 w + i; tokens beyond the words are in no set, bits beyond the vocabulary fall off."""
    masks = array("I", [1 << 31 | 1, 0, 0, 1 << 2]).tobytes()
    words = bitmask_words(masks, 2, torch.device("cpu"))
    assert [row.nonzero()[:, 0].tolist() for row in unpack_bitmask(words, 64)] == [[0, 31], [34]]
    assert unpack_bitmask(words, 70).shape == (2, 70) and not unpack_bitmask(words, 70)[:, 64:].any()
    assert unpack_bitmask(words, 33).shape == (2, 33) and not unpack_bitmask(words, 33)[1].any()
