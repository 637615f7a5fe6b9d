"""The check of replays trains as a user does, and replays as one does."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.verify.replay import verify_replay
from ludus.checks.verify.training import Training, write_run


def test_a_replayed_training_is_the_training(tiny_model_folder: Path) -> None:
    """Policy, masters and moments after each step, from the beginning and from the middle."""
    result = verify_replay(steps=2, model=str(tiny_model_folder), seed=1)
    assert result.weights_equal and result.rest_equal and result.ok
    assert result.times_faster > 0


def test_a_run_that_there_is_already_is_replayed(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Its folder stays as it was, and nothing is trained before."""
    write_run(tmp_path, tiny_model_folder, 1, 2, {"checkpoint": {"every_steps": 2}})
    Training(tmp_path, "played").finish()
    result = verify_replay(run=str(tmp_path / "runs" / "played"))
    assert result.ok and result.steps == 2 and result.rest_equal is None
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["played"]
