"""The check of replays trains as a user does, and replays as one does."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from ludus.checks.verify import training
from ludus.checks.verify.replay import verify_replay
from ludus.checks.verify.training import Training, write_run
from ludus.machine import Machine
from ludus.runs.folder import read_metrics


def test_a_replayed_training_is_the_training(tiny_model_folder: Path) -> None:
    """Policy, masters and moments after each step, from the beginning and from the middle."""
    result = verify_replay(steps=2, model=str(tiny_model_folder), seed=1)
    assert result.weights_equal and result.rest_equal and result.ok
    assert result.times_faster > 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(Machine.look(seconds=0).workers < 2, reason="with two threads")
def test_a_run_that_there_is_already_is_replayed(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder stays as it was, nothing is trained before, and it is computed with as many threads as it was, however
    many are free for the check's own runs."""
    write_run(tmp_path, tiny_model_folder, 1, 2, {"checkpoint": {"every_steps": 2}})
    Training(tmp_path, "played", environment={"OMP_NUM_THREADS": "2"}).finish()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(training, "_num_threads", lambda: "1")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda **_: nullcontext(str(tmp_path / "replayed")))
    result = verify_replay(run=str(tmp_path / "runs" / "played"))
    assert result.ok and result.steps == 2 and result.rest_equal is None
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["played"]
    rows = read_metrics(tmp_path / "replayed" / "whole").rows
    assert [metrics["train/threads"] for _, metrics in rows] == [2.0, 2.0]
