"""Measures what a run learns, step by step, to compare algorithms: trains a recipe by its configuration.

Knows: a run's configuration, the public API.  Knows not: other runs, curves, terminals.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ludus.api.trainer import Trainer
from ludus.checks.bench.step import Steps
from ludus.checks.bench.workloads import LearnWork
from ludus.compat.config import load_config
from ludus.loop.memory import peak_rss_mb


def measure_learn(work: LearnWork) -> dict[str, Any]:
    """A line for each step: its number, seconds, mean reward of its episodes; and the results on held-out rows."""
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        config = load_config(Path(work.run), (*work.overrides, f"run_root={folder}", f"seed={work.seed}"))
        summary = Trainer(config).train(observer=steps)
    figures = {"success_before": summary.success_before, "success_after": summary.success_after}
    return {"steps": steps.lines, **figures, "train_seconds": summary.train_seconds, "peak_mb": peak_rss_mb()}
