"""The check of ranks starts its processes as a run does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ludus.checks.verify.ranks import verify_ranks
from ludus.errors import UserError


def test_two_ranks_are_one(tiny_model_folder: Path) -> None:
    """Gradient and curve are the same, and a checkpoint goes from two ranks to one and back."""
    result = verify_ranks(model=str(tiny_model_folder), seed=1, ranks=[2], steps=3)
    assert result.ok and result.state_equal
    assert result.gradient_rel_diff[2] <= 1e-5 and result.resume_rel_diff <= 1e-6
    assert result.row_tokens[0] < result.row_tokens[1] and len(set(result.losses)) == 3
    assert len(result.split_gradient_rel_diff) == 2 and max(result.split_gradient_rel_diff.values()) <= 1e-5
    assert result.sent_equal and 0 < result.largest_message_mb[2] < 16
    assert not replace(result, state_equal=False).ok and not replace(result, sent_equal=False).ok
    assert not replace(result, split_gradient_rel_diff={"ranks=2": 1e-3}).ok
    assert not replace(result, curve_rel_diff={2: 1e-3}).ok


def test_one_rank_is_nothing_to_compare_with() -> None:
    """A number that leaves nothing to compare is refused before anything runs."""
    with pytest.raises(UserError, match="must be 2 or more"):
        verify_ranks(model="smollm2-135m", seed=0, ranks=[1], steps=3)
