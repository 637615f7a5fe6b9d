"""A run's training once more from its record: the same weights at the end, and how much sooner.

Knows: processes, run folders, model files.  Knows not: what happens inside a run, how it is replayed.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ludus.checks.verify.training import Training, command_line, digest, write_run
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class ReplayResult(Verdict):
    model: str
    algorithm: str
    ranks: int
    """Of the trainer."""
    seed: int
    steps: int
    weights_equal: bool
    """The models saved at the end are equal to the last bit, and so is the state of the trainer after each step."""
    rest_equal: bool
    """The same of a replay that begins with the checkpoint in the middle."""
    times_faster: float
    """Than playing and training were."""

    @property
    def ok(self) -> bool:
        return self.weights_equal and self.rest_equal


def verify_replay(
    *, steps: int = 5, algorithm: str = "grpo", ranks: int = 1, model: str = MODEL, seed: int = 0
) -> ReplayResult:
    """Does a training come out the same from the record of what was played?

    A run is trained, then replayed without an engine or agents, the whole
    of it and from the checkpoint in the middle on: the weights at the end,
    and the trainer's state after each step, must be equal to the last bit.

    Example:  ludus verify replay --json

    Raises BackendError if a run fails.
    """
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
        whole = _replayed(folder, "whole")
        middle = steps // 2
        _replayed(folder, "rest", "--from", str(middle))
        return ReplayResult(
            model=model,
            algorithm=algorithm,
            ranks=ranks,
            seed=seed,
            steps=steps,
            weights_equal=digest(runs / "whole") == digest(runs / "played"),
            rest_equal=digest(runs / "rest", after_step=middle) == digest(runs / "played", after_step=middle),
            times_faster=round(whole, 2),
        )


def _replayed(folder: Path, name: str, *options: str) -> float:
    """How many times faster it says that it was."""
    done = command_line(folder, "replay", str(folder / "runs" / "played"), f"name={name}", *options, "--json")
    return float(json.loads(done.splitlines()[-1])["times_faster"])
