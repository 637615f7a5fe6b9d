"""A recipe behind slow tools: its agent waits before each call, its rollouts run as far ahead as asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.checks.bench.overlap import measure_overlap, overlap_config
from ludus.checks.bench.pairs import Measured
from ludus.checks.bench.results import rows_of
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import OverlapWork
from ludus.errors import UserError


def test_a_recipe_is_trained_behind_its_tools(run_file: Path) -> None:
    """Every step takes as long as two tools one after the other; the figures are those of the run."""
    figures = measure_overlap(OverlapWork(str(run_file), (), 0, 0.05, 0.05, 1, 0))
    assert figures["steps"] == 3 and figures["stale_versions"] == 0.0
    assert figures["step_s"] >= 2 * 0.05
    assert figures["episodes_per_s"] == pytest.approx(4 / figures["step_s"])
    assert 0 <= figures["reward"] <= 4 and figures["success"] is None


def test_what_is_under_way_has_a_place(run_file: Path) -> None:
    """The settings are the recipe's, but for how far it runs ahead, and the places for that."""
    config = overlap_config(OverlapWork(str(run_file), ("total_train_steps=7",), 4, 0.2, 2.0, 1, 3), "elsewhere")
    assert (config.rollout.max_head_offpolicyness, config.rollout.max_concurrent_rollouts) == (4, 5 * 2 * 2)
    assert (config.seed, config.total_train_steps, config.run_root) == (3, 7, "elsewhere")


def test_only_agents_of_this_process_can_be_slowed(run_file: Path) -> None:
    """Others have no client that a hook could wait in: the error names the mode."""
    with pytest.raises(UserError, match="mode 'subproc'"):
        measure_overlap(OverlapWork(str(run_file), ("rollout.agent.mode=subproc",), 0, 0.0, 0.0, 1, 0))


def test_rows_compare_with_the_first_value() -> None:
    """Ratios are made seed by seed, and everything else is the median over seeds."""
    names = {"step_s": 1.0, "reward": 0.5, "reward_error": 0.1, "success": None, "stale_versions": 0.0}
    measured = {
        0: [{"ahead": 0, "episodes_per_s": rate, **names} for rate in (2.0, 4.0)],
        4: [{"ahead": 4, "episodes_per_s": rate, **names} for rate in (6.0, 8.0)],
    }
    (base,), (ahead,) = (rows_of(BENCHES["overlap"], Measured(each, measured[0])) for each in measured.values())
    assert (base["ratio"], base["ours"]) == (1.0, 3.0)
    assert (ahead["ratio"], ahead["ratio_min"], ahead["ratio_max"]) == (2.5, 2.0, 3.0)
    assert ahead["success"] is None
