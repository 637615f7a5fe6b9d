"""Runs whose episodes go to MLflow: all of them arrive, and the run is the same as without."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import ludus
from ludus.api.play import play
from ludus.runs.store import RunStore
from tests.api.test_trainer import ROWS, Talker, make_config, weights_of


@pytest.mark.timeout(1000)
def test_a_run_with_traces(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Every episode of the run, of its evaluations too, is a trace with its step; the weights are those without."""
    database = tmp_path / "mlruns.db"
    # The process that writes runs in the time that others leave, which on a busy machine may be little.
    mlflow = {"backend": "mlflow", "tracking_uri": f"sqlite:///{database}", "patience_s": 900}
    for name, trace in (("plain", {}), ("traced", mlflow)):
        config = make_config(tiny_model_folder, tmp_path, name=name, trace=trace, eval={"after": True})
        ludus.Trainer(config, ROWS, ROWS[:2]).train(Talker)
    assert weights_of(tmp_path / "plain") == weights_of(tmp_path / "traced")
    with RunStore.open(tmp_path / "traced") as store:
        episodes = {
            (row["id"], "eval" if row["is_eval"] else "train", str(row["step"])) for row in store.episode_rows()
        }
    tag = "(SELECT value FROM trace_tags WHERE request_id = info.request_id AND key = '{}')"
    columns = ", ".join(tag.format(name) for name in ("episode", "split", "step"))
    with sqlite3.connect(database) as db:
        traces = set(db.execute(f"SELECT {columns} FROM trace_info AS info").fetchall())
    assert traces == episodes


def test_rollouts_with_a_server_that_is_gone(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Episodes are played as ever; a warning says what became of their traces."""
    trace = {"backend": "mlflow", "tracking_uri": "http://127.0.0.1:9"}
    config = make_config(tiny_model_folder, tmp_path, trace=trace, gconfig={"n_samples": 1})
    episodes = play(Talker, ROWS, config=config)
    assert [episode.outcome.kind for episode in episodes] == ["ok"] * len(ROWS)
    assert f"{len(ROWS)} of {len(ROWS)} traces were not written" in caplog.text
