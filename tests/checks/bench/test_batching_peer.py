"""The script of transformers' continuous batching, run on a tiny model."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ludus.checks.bench.workloads import SampleWork

SCRIPT = Path(__file__).parents[3] / "bench" / "peers" / "transformers_batching_sample.py"


def test_it_samples_every_batch_to_its_full_length(
    small_sample: SampleWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for every number of requests. The script itself checks lengths and logprobs."""
    file = tmp_path / "work.json"
    file.write_text(json.dumps(asdict(small_sample)))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(file)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["requests"] for row in rows] == [1, 3] and all(row["tokens_per_s"] > 0 for row in rows)
