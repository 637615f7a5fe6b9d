"""Runs two runners alternately, each time in a new process (A B A B), and compares each pair by its ratio.

Knows: commands, their work as a file, the last line they print.  Knows not: what is measured.
Invariant: ratios are taken only within a pair, because a machine's speed changes within minutes.

A runner is a command whose last argument is the path of a JSON file (its work), and whose last line of output is a JSON
object, its results.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.checks.bench.limited import run_limited
from ludus.errors import BackendError

Results = Mapping[str, Any]
"""The JSON object that a runner printed."""
# Lines of a failed runner's output that are shown: enough for an exception's message and origin.
_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Runner:
    """A command, and its work, done in a separate process."""

    name: str
    command: tuple[str, ...]
    work: Mapping[str, Any]
    """JSON-able."""
    advice: str
    """What to do when it fails."""

    def run(self, *, limit_s: float | None = None, folder: Path | None = None) -> Results:
        """Run it, and return its results. limit_s, folder: as for `run_limited`.

        Raises BackendError with its last lines if it prints none, or takes longer than `limit_s`.
        """
        with tempfile.TemporaryDirectory(prefix="ludus-bench-") as scratch:
            file = Path(scratch) / "work.json"
            file.write_text(json.dumps(self.work))
            try:
                done = run_limited([*self.command, str(file)], limit_s=limit_s, folder=folder)
            except OSError as error:
                raise BackendError(f"{self.name} could not be started: {error}; {self.advice}") from error
        results = _last_object(done.out)
        if done.code != 0 or results is None:
            ended = f"left with exit code {done.code}" if done.code else "printed no results"
            if done.code is None:
                ended = f"was ended after the {limit_s:.0f} s that it had"
            raise BackendError(f"{self.name} {ended}; {self.advice}. Its last lines:\n{done.last_lines(_LAST_LINES)}")
        return results


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of both runners, pair by pair."""

    ours: Sequence[Results]
    peer: Sequence[Results] | None
    """None: there was no peer."""


def run_pairs(ours: Runner, peer: Runner | None, *, pairs: int, on_start: Callable[[str], object]) -> Measured:
    """Run `pairs` pairs, ours first in each; only ours if there is no peer.

    on_start: called with the name of a runner before each measurement.
    """
    printed: dict[str, list[Results]] = {"ours": [], "peer": []}
    for _ in range(pairs):
        for side, runner in (("ours", ours), ("peer", peer)):
            if runner is not None:
                on_start(runner.name)
                printed[side].append(runner.run())
    return Measured(printed["ours"], None if peer is None else printed["peer"])


def compare(ours: Sequence[float], peer: Sequence[float], *, less_is_faster: bool = False) -> dict[str, float]:
    """Medians of both, and median and range of the pairs' ratios; above 1, ours is faster.

    less_is_faster: the values are times, not rates.
    """
    pairs = [(theirs, mine) if less_is_faster else (mine, theirs) for mine, theirs in zip(ours, peer, strict=True)]
    ratios = [above / below for above, below in pairs]
    compared = {"ours": statistics.median(ours), "peer": statistics.median(peer), "ratio": statistics.median(ratios)}
    compared |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
    return {name: significant(value) for name, value in compared.items()}


def significant(value: float) -> float:
    """The value rounded to its significant digits."""
    return float(f"{value:.4g}")


def _last_object(output: str) -> Results | None:
    """The JSON object in the last line that holds one. None: there is none."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None
