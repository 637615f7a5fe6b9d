"""A run in TensorBoard, read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.config import Config
from ludus.types import Outcome
from tests.runs.trackers.conftest import SUMMARY, tracked, with_tools

pytestmark = pytest.mark.timeout(400)  # the tracker's process has the lowest priority
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
found = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0}).Reload()
tags = found.Tags()
content = lambda tag: found.SummaryMetadata(tag).plugin_data.content
start = metadata.parse_session_start_info_plugin_data(content(metadata.SESSION_START_INFO_TAG))
end = metadata.parse_session_end_info_plugin_data(content(metadata.SESSION_END_INFO_TAG))
texts = [tag for tag in tags["tensors"] if found.SummaryMetadata(tag).plugin_data.plugin_name == "text"]
print(json.dumps({
    "scalars": {tag: [[each.step, each.value] for each in found.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {
        tag: [[each.step, each.tensor_proto.string_val[0].decode()] for each in found.Tensors(tag)] for tag in texts
    },
    "hyperparameters": {
        name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
    },
    "group": start.group_name, "status": end.status,
}))
"""


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """Curves over both processes in one folder, episodes, summary and report as texts, the configuration as
    hyperparameters of a session that has succeeded."""
    settings = {"to": "tensorboard", "tensorboard": {"folder": str(tmp_path / "logs")}}
    failed = replace(with_tools(9), reward=None, outcome=Outcome("failed", "Traceback\nValueError: no"))
    with tracked(tmp_path, "first", **settings) as run:
        run.add_metrics(1, {"rollout/reward": 0.25})
        run.add_episode(with_tools(1), step=1)
    with tracked(tmp_path, "first", goes_on_at=1, **settings) as run:
        run.add_metrics(2, {"rollout/reward": 0.5})
        run.add_episode(failed, step=2)
        run.add_episode(replace(with_tools(10), is_eval=True), step=2)
        run.write_summary(SUMMARY)
    command = [sys.executable, "-W", "ignore", "-c", READ, str(tmp_path / "logs" / "first")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["scalars"]["rollout/reward"] == [[1, 0.25], [2, 0.5]]
    assert found["scalars"]["summary/reward"] == [[2, 0.75]]
    texts = found["texts"]
    assert json.loads(texts["config"][0][1])["name"] == "first"
    assert json.loads(texts["summary"][0][1]) == SUMMARY
    [(step, first), (_, second)] = texts["episodes/train"]
    reply = with_tools(1).session.turns[0].reply.content or ""
    assert step == 1 and first.startswith("sample `task-0` · group `group-0` · episode `ep-1` · outcome `ok`")
    assert "**user**\n\n    Guess. It is higher than 7.\n\n\n**assistant**\n\n    " in first
    assert all(f"    {line}\n" in first for line in reply.splitlines())
    assert "outcome `failed`" in second and "    ValueError: no\n" in second
    assert [step for step, _ in texts["episodes/eval"]] == [2]
    [(step, report)] = texts["report"]
    assert step == 2 and "| rollout/reward | 0.25 | 0.5 |" in report
    assert "- 1 x failed: ValueError: no" in report
    assert found["hyperparameters"]["gconfig.n_samples"] == Config().gconfig.n_samples
    assert (found["group"], found["status"]) == ("first", 1)
