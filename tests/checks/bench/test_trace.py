"""`ludus bench trace`: the same episodes with and without traces."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.checks.bench.pairs import Measured
from ludus.checks.bench.results import rows_of
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.trace import measure_trace
from ludus.checks.bench.workloads import TraceWork, sums


@pytest.mark.timeout(300)  # MLflow makes its tables
def test_both_sides_sample_the_same(tiny_model_folder: Path) -> None:
    """As many tokens, every trace written, and a row with the ratio."""
    questions, _ = sums(0)
    work = TraceWork(
        str(tiny_model_folder), ("model.dtype=float32",), questions=questions, new_tokens=4, episodes=6, at_once=3
    )
    ours, plain = (asyncio.run(measure_trace(replace(work, tracker=tracker))) for tracker in ("mlflow", None))
    assert ours["tokens_per_s"] > 0 and plain["late_traces"] == 0
    (row,) = rows_of(BENCHES["trace"], Measured([ours], [plain]))
    assert row["ratio"] == pytest.approx(ours["tokens_per_s"] / plain["tokens_per_s"], rel=1e-2)
    assert row["leaving_s"] >= 0
