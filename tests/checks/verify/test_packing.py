"""The packing check compares two gradients of the same recorded turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ludus.checks.verify.packing import verify_packing


def test_packed_rows_have_the_gradient_of_single_turns(tiny_model_folder: Path) -> None:
    """Shared prefixes go through the model once, and the gradient is the same to 1e-5."""
    result = verify_packing(model=str(tiny_model_folder), seed=2, tokens=150)
    assert result.ok and result.max_rel_diff <= 1e-5
    assert result.row_tokens < result.sequence_tokens
    assert result.to_json()["max_rel_diff"] == result.max_rel_diff
    assert not replace(result, max_rel_diff=2e-5).ok
    assert result.variants == 18 and result.variants_rel_diff <= 1e-5 and result.minibatches_equal
    assert result.minibatches == (1, 2, 3) and 0 < result.minibatches_rel_diff <= 1e-5
    assert not replace(result, minibatches_rel_diff=2e-5).ok
    assert not replace(result, variants_rel_diff=2e-5).ok and not replace(result, minibatches_equal=False).ok
