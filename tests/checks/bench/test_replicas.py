"""Several engines that wait play more episodes than one, through gateway, rollouts and router."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ludus.checks.bench.replicas import measure_replicas
from ludus.checks.bench.work import ReplicasWork


def test_replicas_share_the_episodes(tiny_model_folder: Path) -> None:
    """Every call of every episode is answered once, by both replicas in even parts, and the clock ran."""
    work = ReplicasWork(str(tiny_model_folder), 2, places=4, token_s=0.001, new_tokens=4, groups=4, at_once=16)
    figures = asyncio.run(measure_replicas(work))
    assert sum(figures["calls"]) == 4 * 4 * 2 + 2, "and the one episode that warms up"
    assert min(figures["calls"]) >= 8
    assert figures["episodes_per_s"] > 0
