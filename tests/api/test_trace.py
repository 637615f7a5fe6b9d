"""Runs whose episodes go to MLflow: all of them arrive, and the run is the same as without."""

from __future__ import annotations

import re
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest

import ludus
from ludus.api.play import play
from ludus.errors import ConfigError
from ludus.runs.store import RunStore
from tests.api.test_trainer import ROWS, Talker, make_config, weights_of


@pytest.mark.timeout(1000)
def test_a_run_with_traces(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Every episode of the run, of its evaluations too, is a trace with its step; the weights are those without."""
    database = tmp_path / "mlruns.db"
    # The process that writes runs in the time that others leave, which on a busy machine may be little.
    mlflow = {"to": "mlflow", "mlflow": {"tracking_uri": f"sqlite:///{database}"}, "patience_s": 900}
    for name, trackers in (("plain", {}), ("traced", mlflow)):
        config = make_config(tiny_model_folder, tmp_path, name=name, trackers=trackers, eval={"after": True})
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
        measured = set(db.execute("SELECT step, value FROM metrics WHERE key = 'rollout/reward'").fetchall())
    assert traces == episodes
    with RunStore.open(tmp_path / "traced") as store:
        assert measured == {(step, row["rollout/reward"]) for step, row in store.metrics() if "rollout/reward" in row}


def test_a_tracker_that_is_not_installed(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It is told before the run begins, with how to install it."""
    if find_spec("trackio") is not None:
        pytest.skip("trackio is installed")
    config = make_config(tiny_model_folder, tmp_path, trackers="trackio")
    with pytest.raises(ConfigError, match=re.escape("pip install 'ludus[trackio]'")):
        ludus.Trainer(config, ROWS, ROWS[:2]).train(Talker)
    assert not config.folder.exists()


def test_rollouts_with_a_server_that_is_gone(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Episodes are played as ever; a warning says what became of their traces."""
    trackers = {"to": "mlflow", "mlflow": {"tracking_uri": "http://127.0.0.1:9"}}
    config = make_config(tiny_model_folder, tmp_path, trackers=trackers, gconfig={"n_samples": 1})
    episodes = play(Talker, ROWS, config=config)
    assert [episode.outcome.kind for episode in episodes] == ["ok"] * len(ROWS)
    assert f"{len(ROWS)} episodes are missing" in caplog.text
