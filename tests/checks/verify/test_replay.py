"""The check of replays trains as a user does, and replays as one does."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.verify.replay import verify_replay


def test_a_replayed_training_is_the_training(tiny_model_folder: Path) -> None:
    """Policy, masters and moments after each step, from the beginning and from the middle."""
    result = verify_replay(steps=2, model=str(tiny_model_folder), seed=1)
    assert result.weights_equal and result.rest_equal and result.ok
    assert result.times_faster > 0
