"""A run in trackio, read back with trackio's own client; `make test-trackio` sets it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.trackers.conftest import SUMMARY, tracked, with_tools

pytestmark = pytest.mark.timeout(400)  # the tracker's process has the lowest priority
READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps({
    "runs": SQLiteStorage.get_runs("math"), "logs": SQLiteStorage.get_logs("math", "first"),
    "config": SQLiteStorage.get_run_config("math", "first"), "traces": SQLiteStorage.get_traces("math", run="first"),
}, default=str))
"""


def test_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes write one run: metrics with their steps, episodes as traces, the summary and the report."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    settings = {"to": "trackio", "project": "math"}
    with tracked(tmp_path, "first", **settings) as run:
        run.add_metrics(1, {"rollout/reward": 0.25})
        run.add_episode(with_tools(1), step=1)
    with tracked(tmp_path, "first", goes_on_at=1, **settings) as run:
        run.add_metrics(2, {"rollout/reward": 0.5})
        run.add_episode(with_tools(2), step=2)
        run.write_summary(SUMMARY)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False, env=env)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["runs"] == ["first"] and found["config"]["name"] == "first"
    logs = found["logs"]
    assert [(row["step"], row["rollout/reward"]) for row in logs if "rollout/reward" in row] == [(1, 0.25), (2, 0.5)]
    assert [row["summary/reward"] for row in logs if "summary/reward" in row] == [0.75]
    [ended] = [row for row in logs if "report" in row]
    assert ended["report"]["_type"] == "trackio.markdown" and "| rollout/reward | 0.25 | 0.5 |" in str(ended["report"])
    [page] = (tmp_path / "trackio").rglob("*.html")
    assert "Guess" in page.read_text("utf-8")
    traces = sorted(found["traces"], key=lambda trace: trace["step"])
    assert [trace["metadata"]["episode"] for trace in traces] == ["ep-1", "ep-2"]
    assert [span["kind"] for span in traces[0]["spans"]][:4] == ["span", "generation", "tool", "generation"]
