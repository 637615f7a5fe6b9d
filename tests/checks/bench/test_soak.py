"""The soak of the gateway, with few sessions and the tests' tokenizer."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.bench.soak import SoakWork, measure_soak


def test_every_session_is_recorded_and_nothing_is_held(tokenizer_folder: Path) -> None:
    """Sessions, streams and clients that leave are counted; no thread is left of any of them."""
    found = measure_soak(SoakWork(str(tokenizer_folder), sessions=20, seconds=1.5, streams=8, seed=1))
    assert found["sessions"] == 20 and found["streams"] == 8 and found["left"] > 0
    assert found["requests"] >= 20 * 4 and found["p99_s"] >= found["p50_s"] > 0
    begin, end, most = found["threads"]
    assert end <= most < begin + 8  # of pools, whatever the number of sessions
