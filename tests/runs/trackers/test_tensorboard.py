"""A run in TensorBoard, read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.trackers.conftest import SUMMARY, tracked, with_tools

pytestmark = pytest.mark.timeout(400)  # the tracker's process has the lowest priority
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1]).Reload()
tags = found.Tags()
print(json.dumps({
    "scalars": {tag: [[each.step, each.value] for each in found.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]},
}))
"""


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """Curves over both processes in one folder, the configuration and the summary as texts."""
    settings = {"to": "tensorboard", "tensorboard": {"folder": str(tmp_path / "logs")}}
    with tracked(tmp_path, "first", **settings) as run:
        run.add_metrics(1, {"rollout/reward": 0.25})
        run.add_episode(with_tools(1), step=1)
    with tracked(tmp_path, "first", goes_on_at=1, **settings) as run:
        run.add_metrics(2, {"rollout/reward": 0.5})
        run.write_summary(SUMMARY)
    command = [sys.executable, "-W", "ignore", "-c", READ, str(tmp_path / "logs" / "first")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["scalars"]["rollout/reward"] == [[1, 0.25], [2, 0.5]]
    assert found["scalars"]["summary/reward"] == [[2, 0.75]]
    assert json.loads(found["texts"]["config"])["name"] == "first"
    assert json.loads(found["texts"]["summary"]) == SUMMARY
