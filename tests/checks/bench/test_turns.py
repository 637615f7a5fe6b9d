"""Twice the turns cost twice as much, by what is counted; time is never asserted."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.bench.turns import measure_turns
from ludus.checks.bench.workloads import TurnsWork


def test_counters_grow_with_the_turns(tiny_model_folder: Path) -> None:
    """A session of 24 turns tokenizes, renders, reads, prefills and stores about twice what one of 12 does."""
    measured = measure_turns(TurnsWork(str(tiny_model_folder), 12, 24, pairs=1))
    counted = {row["counter"]: row for row in measured["rows"]}
    time_s = counted.pop("gateway_cpu_s")
    assert set(counted) == {
        *("tokenizer_chars", "graph_nodes", "rendered_messages", "read_messages", "prefilled_tokens"),
    }
    for row in counted.values():
        assert 1.5 < row["ratio"] <= row["most"] == 2.1
    assert counted["graph_nodes"]["long"] == 2 * 24
    assert counted["read_messages"]["long"] == 2 * 24  # two of the first turn, two of each later one
    assert set(time_s) == {"counter", "short", "long", "ratio", "ratio_min", "ratio_max", "most"}
