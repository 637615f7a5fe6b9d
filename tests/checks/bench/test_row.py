"""Waiting while a long row is trained, measured on a tiny model."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from ludus.checks.bench.row import OneTurnARow, measure_row
from ludus.checks.bench.workloads import RowWork, long_row
from ludus.errors import UserError


@pytest.mark.parametrize("gives_way", [True, False])
def test_waits_and_what_they_cost_are_measured(gives_way: bool, tiny_model_folder: Path) -> None:
    """From token to token and of aborts, median and longest, and the tokens a second of training."""
    overrides = ("model.dtype=float32", "engine.kv_bytes=16777216")
    shape = {"row": long_row(400, 300), "prompt": tuple(range(5, 20)), "rows": 30, "every_s": 0.001}
    work = RowWork(str(tiny_model_folder), overrides, gives_way=gives_way, **shape)
    rows = {row["what"]: row for row in asyncio.run(measure_row(work))["rows"]}
    for what in ("from token to token", "an abort"):
        median, longest = (rows[f"{what}, {name}, ms"]["ms"] for name in ("median", "longest"))
        assert 0 < median <= longest
    assert rows["an abort, median, ms"]["aborts"] > 0
    assert rows["training alone, tokens/s"]["tokens_per_s"] > 0
    assert rows["training beside the answers, tokens/s"]["tokens_per_s"] > 0


def test_an_engine_that_cannot_answer_ends_it(tiny_model_folder: Path) -> None:
    """It is not waited for."""
    shape = {"row": long_row(64, 300), "prompt": (5,) * 600, "rows": 1}
    work = RowWork(str(tiny_model_folder), ("model.dtype=float32", "engine.kv_bytes=16777216"), **shape)
    with pytest.raises(UserError, match="600 tokens and must be shorter than the context"):
        asyncio.run(measure_row(work))


def test_the_other_side_keeps_its_turn_to_the_end_of_a_row() -> None:
    """Who waits has none before, and does nothing meanwhile."""
    lease, order = OneTurnARow(), list[str]()

    def read() -> None:
        with lease.hold("engine", lambda: order.append("meanwhile"), is_read_only=True):
            order.append("engine")

    with lease.hold("trainer"):
        reader = threading.Thread(target=read)
        reader.start()
        while "waiting=1" not in repr(lease):
            time.sleep(0.001)
        lease.give_way()
        order.append("trainer")
    reader.join()
    assert order == ["trainer", "engine"]
