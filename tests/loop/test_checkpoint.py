"""Checkpoints: whole or not there, and read back as they were."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import pytest

from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.checkpoint import (
    RunProgress,
    drop_trainer,
    latest_checkpoint,
    save_checkpoint,
    save_whole,
    set_aside_later,
    whole_checkpoint,
)


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


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "foreign": lambda path: path.write_text('{"is": "of another program"}'),
}


def test_a_folder_is_written_as_a_whole(tmp_path: Path) -> None:
    """What broke off leaves the folder as it was, and nothing in the way of the next."""

    def breaks_off(folder: Path) -> None:
        write("half", folder)
        raise OSError(28, "No space left on device")

    def write(text: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights.txt").write_text(text)

    save_whole(tmp_path / "model", partial(write, "first"))
    with pytest.raises(OSError, match="No space"):
        save_whole(tmp_path / "model", breaks_off)
    assert (tmp_path / "model" / "weights.txt").read_text() == "first"
    save_whole(tmp_path / "model", partial(write, "second"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights.txt").read_text() == "second"


@pytest.mark.parametrize("name", ["progress.json", "trainer/weights.txt", "trainer/critic/weights.txt"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_passed_over(
    kind: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever file has whichever damage, the one before is gone on from, and one sentence says what was wrong."""

    def save(folder: Path) -> None:
        (folder / "critic").mkdir()
        for path in (folder / "weights.txt", folder / "critic" / "weights.txt"):
            path.write_text("1.5" * 100)

    for step in (1, 2):
        save_checkpoint(tmp_path, RunProgress(step=step), save_trainer=save, keep=2)
    DAMAGES[kind](tmp_path / "step-000002" / name)
    found = whole_checkpoint(tmp_path)
    assert found is not None and found.progress.step == 1
    (record,) = caplog.records
    assert re.search(rf"checkpoint step-000002: .*{Path(name).name}.*Going on from step 1$", record.getMessage())
    set_aside_later(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-step-000002", "step-000001"]
    save_checkpoint(tmp_path, RunProgress(step=2), save_trainer=save, keep=2)
    again = whole_checkpoint(tmp_path)
    assert again is not None and again.progress.step == 2


def test_where_no_checkpoint_is_whole_nothing_begins_anew_by_itself(tmp_path: Path) -> None:
    """The error names what is wrong with each, and both ways out."""
    for step in (1, 2):
        save_checkpoint(tmp_path, RunProgress(step=step), save_trainer=save_text("x"), keep=2)
        (tmp_path / f"step-{step:06d}" / "trainer" / "weights.txt").unlink()
    with pytest.raises(
        UserError, match=r"step-000002: trainer/weights.txt is missing; checkpoint step-000001.*Restore"
    ):
        whole_checkpoint(tmp_path)


def test_a_checkpoint_whose_trainer_was_dropped_is_whole(tmp_path: Path) -> None:
    """Its model stays, and is all that it says it has."""

    def save(folder: Path) -> None:
        (folder.parent / "model").mkdir()
        for path in (folder / "weights.txt", folder.parent / "model" / "weights.txt"):
            path.write_text("x")

    drop_trainer(save_checkpoint(tmp_path, RunProgress(step=1), save_trainer=save, keep=1))
    found = whole_checkpoint(tmp_path)
    assert found is not None and not found.has_trainer and list(found.files) == ["model/weights.txt"]
