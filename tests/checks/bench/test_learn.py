"""What a recipe learns with given settings."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.bench.learn import measure_learn
from ludus.checks.bench.workloads import LearnWork


def test_a_recipe_is_trained_with_the_settings(run_file: Path) -> None:
    """A line for each step with its reward, and behind them what the whole run came to."""
    figures = measure_learn(LearnWork(str(run_file), ("algorithm.name=rloo", "total_train_steps=2"), seed=3))
    assert [line["step"] for line in figures["steps"]] == [1, 2]
    assert all(0 <= line["reward"] <= 4 for line in figures["steps"])
    assert figures["success_after"] is None and figures["train_seconds"] > 0 and figures["peak_mb"] > 0
