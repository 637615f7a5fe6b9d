"""Checks that replaying a run's training from its record gives the same weights, and measures the speed-up.

Knows: processes, run folders, model files.  Knows not: what happens inside a run, how it is replayed.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.checks.verify.training import Training, command_line, digest, write_run
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class ReplayResult(Verdict):
    run: str
    """The run that was replayed; a small run trained by the check itself, if none was given."""
    steps: int
    weights_equal: bool
    """Whether the final models, and the trainer's state after each step, are equal to the last bit."""
    rest_equal: bool | None
    """The same for a replay from the checkpoint in the middle. None: not tested, as a run was given."""
    times_faster: float
    """Speed-up over playing and training."""

    @property
    def ok(self) -> bool:
        return self.weights_equal and self.rest_equal is not False


def verify_replay(
    *,
    run: str | None = None,
    steps: int = 5,
    algorithm: str = "grpo",
    ranks: int = 1,
    model: str = MODEL,
    seed: int = 0,
) -> ReplayResult:
    """Does a training come out the same from the record of what was played?

    A run is trained, then replayed without an engine or agents, the whole
    of it and from the checkpoint in the middle on: the weights at the end,
    and the trainer's state after each step, must be equal to the last bit.
    With --run a run that there is already is replayed, and nothing trained
    before: its model and its last checkpoint must come out the same.

    Examples:  ludus verify replay --json

      ludus verify replay --run runs/guess

    Raises BackendError if a run fails.
    """
    if run is not None:
        return _of_run(Path(run).resolve())
    with tempfile.TemporaryDirectory(prefix="ludus-replay-") as scratch:
        folder = Path(scratch)
        trained = {
            "algorithm": {"name": algorithm},
            "trainer": {"ranks": ranks, "optimizer": {"lr": 1e-4}},
            "checkpoint": {"every_steps": 1, "keep": steps},
        }
        write_run(folder, resolve_model(model).resolve(), seed, steps, trained)
        runs = folder / "runs"
        Training(folder, "played").finish()
        whole = _replayed(folder, runs / "played", "name=whole")
        middle = steps // 2
        _replayed(folder, runs / "played", "name=rest", "--from", str(middle))
        return ReplayResult(
            run=f"{algorithm} on {ranks} ranks, {model}, seed {seed}",
            steps=steps,
            weights_equal=digest(runs / "whole") == digest(runs / "played"),
            rest_equal=digest(runs / "rest", after_step=middle) == digest(runs / "played", after_step=middle),
            times_faster=round(whole["times_faster"], 2),
        )


def _of_run(folder: Path) -> ReplayResult:
    """The result for an existing run, whose model path may be relative to the working directory."""
    with tempfile.TemporaryDirectory(prefix="ludus-replay-") as scratch:
        found = _replayed(Path.cwd(), folder, "name=whole", f"run_root={scratch}", is_of_check=False)
    return ReplayResult(
        run=str(folder),
        steps=found["steps"],
        weights_equal=found["weights_equal"] is True,
        rest_equal=None,
        times_faster=round(found["times_faster"] or 0.0, 2),
    )


def _replayed(folder: Path, run: Path, *options: str, is_of_check: bool = True) -> dict[str, Any]:
    """The JSON output of `ludus replay`."""
    done = command_line(folder, "replay", str(run), *options, "--json", is_of_check=is_of_check)
    found: dict[str, Any] = json.loads(done.splitlines()[-1])
    return found
