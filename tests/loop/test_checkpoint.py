"""Checkpoints: whole or not there, and read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.checkpoint import RunProgress, latest_checkpoint, save_checkpoint


def save_text(text: str):  # type: ignore[no-untyped-def]
    return lambda folder: (folder / "weights.txt").write_text(text)


def test_a_checkpoint_reads_back(tmp_path: Path) -> None:
    """Progress and the trainer's files come back from the latest checkpoint."""
    progress = RunProgress(
        step=3,
        next_ordinal=20,
        unconsumed=(17, 19),
        train_seconds=1.5,
        ledger=Ledger(7, 4, {"stale": 3}),
        eval_before={"eval/success": 0.1},
    )
    save_checkpoint(tmp_path, RunProgress(step=2), save_trainer=save_text("old"), keep=5)
    save_checkpoint(tmp_path, progress, save_trainer=save_text("new"), keep=5)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress
    assert (found.trainer_folder / "weights.txt").read_text() == "new"


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    """keep=2 leaves the last two."""
    for step in range(1, 5):
        save_checkpoint(tmp_path, RunProgress(step=step), save_trainer=save_text("x"), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]


def test_a_crash_while_saving_leaves_the_one_before(tmp_path: Path) -> None:
    """A trainer that fails halfway leaves no step-… folder, and the next attempt succeeds."""

    def crash(folder: Path) -> None:
        (folder / "weights.txt").write_text("half")
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, RunProgress(step=1), save_trainer=save_text("whole"), keep=2)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, RunProgress(step=2), save_trainer=crash, keep=2)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.progress.step == 1
    save_checkpoint(tmp_path, RunProgress(step=3), save_trainer=save_text("whole"), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003"]


def test_saving_a_step_again_moves_only_the_cursor(tmp_path: Path) -> None:
    """The weights of a step are what they are; a second save of it must not put them at risk."""
    save_checkpoint(tmp_path, RunProgress(step=1, next_ordinal=4), save_trainer=save_text("first"), keep=2)
    save_checkpoint(tmp_path, RunProgress(step=1, next_ordinal=9), save_trainer=save_text("second"), keep=2)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.progress.next_ordinal == 9
    assert (found.trainer_folder / "weights.txt").read_text() == "first"


def test_a_disk_that_refuses_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the folder and says that earlier checkpoints are whole."""

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"step-000007.*No space left on device.*earlier checkpoints are whole"):
        save_checkpoint(tmp_path, RunProgress(step=7), save_trainer=full, keep=2)
    assert latest_checkpoint(tmp_path) is None
