"""What a mask's rule shows is told from any window by a few of its pairs, in contexts of any length."""

from __future__ import annotations

import pytest
import torch
from transformers import masking_utils

from ludus.models.masks import MaskRule, is_window

LENGTH = 131_072
causal = masking_utils.causal_mask_function


@pytest.mark.parametrize("window", [None, 1, 2, 100, 512, 1023, 4096, 4100, LENGTH - 1, LENGTH])
def test_a_window_is_known(window: int | None) -> None:
    """Its own rule is it; a window of one token more or less, and none, are others."""
    rule = causal if window is None else masking_utils.sliding_window_causal_mask_function(window)
    assert is_window(rule, window, length=LENGTH)
    for other in (None, LENGTH // 3) if window is None else (None, window - 1, window + 1):
        is_same = (window or LENGTH) >= LENGTH and (other or LENGTH) >= LENGTH
        assert is_window(rule, other, length=LENGTH) == is_same


@pytest.mark.parametrize("window", [None, 8192])
@pytest.mark.parametrize(
    "rule",
    [
        masking_utils.chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.long)),
        masking_utils.bidirectional_mask_function,
        masking_utils.or_masks(causal, lambda _, __, query, key: (query < 300) & (key < 300)),  # a prefix
        lambda _, __, query, key: (key <= query) & (query - key < 64) | (key == 0),  # a sink
    ],
    ids=["chunks", "both directions", "prefix", "first token"],
)
def test_what_is_no_window_is_none(rule: MaskRule, window: int | None) -> None:
    """However many of its pairs are those of one."""
    assert not is_window(rule, window, length=LENGTH)
