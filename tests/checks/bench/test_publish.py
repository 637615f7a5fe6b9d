"""A publish in the middle of sampling, measured on a tiny model."""

from __future__ import annotations

import asyncio

from ludus.checks.bench.publish import measure_publish, measure_reload
from ludus.checks.bench.workloads import PublishWork


def test_tokens_are_carried_over_a_publish(small_publish: PublishWork) -> None:
    """Answers go on with what they have; kept keys and values are counted as stale, recomputed ones are not."""
    keep, recompute = asyncio.run(measure_publish(small_publish))["rows"]
    assert (keep["kv"], recompute["kv"]) == ("keep", "recompute")
    assert keep["carried_tokens"] > 0 and recompute["carried_tokens"] > 0
    assert keep["stale_tokens"] > 0 and recompute["stale_tokens"] == 0
    assert 0 < keep["copy_s"] <= keep["seconds"]


def test_reloading_takes_time_too(small_publish: PublishWork) -> None:
    """The peer writes the model and loads it again."""
    assert measure_reload(small_publish)["seconds"] > 0
