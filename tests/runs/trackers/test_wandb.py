"""A run in Weights & Biases' offline mode, read back from the records that it will synchronise."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.types import Outcome
from tests.runs.trackers.conftest import SUMMARY, tracked, with_tools

pytestmark = pytest.mark.timeout(500)  # the tracker's process has the lowest priority
READ = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb

found = {"history": [], "summary": {}, "config": {}, "runs": []}
key = lambda item: "/".join(item.nested_key) or item.key
# LevelDB's log behind seven bytes: blocks of 32 KiB, in which each piece of a record has a header of CRC, length, kind.
data, at, record = open(sys.argv[1], "rb").read(), 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:  # a block's end that no header fits into
        at += 32768 - at % 32768
        continue
    length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    record, at = record + data[at + 7 : at + 7 + length], at + 7 + length
    if kind not in (1, 4):  # whole, or the last piece
        continue
    one, record = pb.Record.FromString(record), b""
    match one.WhichOneof("record_type"):
        case "history":
            found["history"].append({key(item): json.loads(item.value_json) for item in one.history.item})
        case "summary":
            found["summary"].update({key(item): json.loads(item.value_json) for item in one.summary.update})
        case "run":
            found["runs"].append([one.run.run_id, one.run.display_name, one.run.project])
            found["config"].update({key(item): json.loads(item.value_json) for item in one.run.config.update})
print(json.dumps(found))
"""


def read_back(path: Path) -> Any:
    result = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def table_of(path: Path, found: Any) -> list[dict[str, Any]]:
    """The episodes that a process has logged, from the files that go with its records."""
    files = [row["episodes/path"] for row in found["history"] if "episodes/path" in row]
    tables = [json.loads((path.parent / "files" / file).read_text()) for file in files]
    return [dict(zip(table["columns"], row, strict=True)) for table in tables for row in table["data"]]


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """Both processes write the same run: metrics over the step, the configuration, the summary and the report."""
    settings = {"to": "wandb", "project": "math", "wandb": {"mode": "offline"}}
    with tracked(tmp_path, "first", **settings) as run:
        run.add_metrics(1, {"rollout/reward": 0.25})
        run.add_episode(with_tools(1), step=1)
    with tracked(tmp_path, "first", goes_on_at=1, **settings) as run:
        run.add_metrics(2, {"rollout/reward": 0.5})
        run.add_episode(replace(with_tools(9), reward=None, outcome=Outcome("failed", "ValueError: no")), step=2)
        run.add_episode(replace(with_tools(10), is_eval=True), step=2)
        run.write_summary(SUMMARY)
    paths = sorted((tmp_path / "first" / "trackers" / "wandb").glob("offline-run-*/*.wandb"))
    before, after = [read_back(path) for path in paths]
    ((run_id, name, project),) = {tuple(each) for found in (before, after) for each in found["runs"]}
    assert (name, project) == ("first", "math")
    assert run_id == json.loads((tmp_path / "first" / "trackers" / "wandb.json").read_text())["run_id"]
    rows = [row for found in (before, after) for row in found["history"] if "rollout/reward" in row]
    assert [(row["step"], row["rollout/reward"]) for row in rows] == [(1, 0.25), (2, 0.5)]
    assert before["config"]["gconfig"]["n_samples"] and after["summary"]["summary/reward"] == 0.75
    (shown,) = [row["report/path"] for row in after["history"] if "report/path" in row]
    assert "Guess" in (paths[1].parent / "files" / shown).read_text()
    episodes = [row for path, found in zip(paths, (before, after), strict=True) for row in table_of(path, found)]
    assert [[row[name] for name in ("step", "split", "episode", "outcome", "reward", "turns")] for row in episodes] == [
        [1, "train", "ep-1", "ok", 0.5, 3],
        [2, "train", "ep-9", "failed", None, 3],
        [2, "eval", "ep-10", "ok", 0.5, 3],
    ]
    first = with_tools(1).session.turns
    assert episodes[0]["asked"] == first[0].messages[-1].content
    said = f"user: {first[0].messages[-1].content}\n\nassistant: {first[0].reply.content}\n\nuser: "
    assert said in episodes[0]["conversation"] and episodes[1]["reason"] == "ValueError: no"


def test_a_part_of_each_step_is_in_the_table(tmp_path: Path) -> None:
    """Eight episodes, where nothing else is set; as many as are asked for otherwise."""
    for name, chosen, most in (("few", {}, 8), ("asked", {"traces_per_step": 11}, 11)):
        with tracked(tmp_path, name, to="wandb", wandb={"mode": "offline"}, **chosen) as run:
            for step in (1, 2):
                for idx in range(12):
                    run.add_episode(with_tools(100 * step + idx), step=step)
        [path] = (tmp_path / name / "trackers" / "wandb").glob("offline-run-*/*.wandb")
        steps = [row["step"] for row in table_of(path, read_back(path))]
        assert steps == [1] * most + [2] * most


def test_without_a_login_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says so and what to do."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with tracked(tmp_path, "run", to="wandb", wandb={"mode": "online"}) as run:
        run.add_metrics(1, {"rollout/reward": 0.25})
    first, last = (record.getMessage() for record in caplog.records if record.name.startswith("ludus.runs"))
    assert first.startswith("wandb: it cannot be told, and the run goes on without it: ")
    assert "trackers.wandb.mode=offline" in first
    assert last.startswith("wandb: it does not have all of the run (")
