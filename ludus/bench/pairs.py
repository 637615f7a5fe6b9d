"""Two sides measured in turn, each time in a fresh process: A B A B, and the ratios of the pairs.

Knows: commands, their work as a file, the last line they print.  Knows not: what is measured.
Invariant: only figures of one pair are divided by each other: a machine's speed changes within minutes.

A side is a command that gets the path of a JSON file (its work) as its last argument and ends by printing one JSON
object, its figures.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import BackendError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Figures = Mapping[str, Any]
"""What a side printed."""
# Of a failed side's output: enough for the message of an exception and where it came from.
_LAST_LINES = 12
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    name: str
    command: tuple[str, ...]
    advice: str
    """What to do when it fails."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of this process's own."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What both sides printed, one right after the other."""

    ours: Figures
    peer: Figures


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of both sides over all pairs. A ratio above 1 means that ours is faster."""

    ours: float
    """Median, as is `peer`."""
    peer: float
    ratio: float
    """Median of the pairs' ratios."""
    ratio_min: float
    ratio_max: float

    @classmethod
    def of(cls, ours: Sequence[float], peer: Sequence[float], *, less_is_faster: bool = False) -> Comparison:
        """`less_is_faster`: the figures are times, not rates."""
        pairs = [(theirs, mine) if less_is_faster else (mine, theirs) for mine, theirs in zip(ours, peer, strict=True)]
        ratios = [above / below for above, below in pairs]
        medians = (statistics.median(ours), statistics.median(peer), statistics.median(ratios))
        return cls(*(significant(value) for value in (*medians, min(ratios), max(ratios))))

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def run_side(side: Side, work: DataclassInstance) -> Figures:
    """The figures that the side prints for this work. Raises BackendError with its last lines if it prints none."""
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(asdict(work)))
        try:
            done = subprocess.run(
                [*side.command, str(file)],
                capture_output=True,
                text=True,
                errors="replace",
                env={**os.environ, **side.environment},
                check=False,
            )
        except OSError as error:
            raise BackendError(f"{side.name} could not be started: {error}; {side.advice}") from error
    figures = _last_object(done.stdout)
    if done.returncode != 0 or figures is None:
        last = (done.stdout + done.stderr).rstrip().splitlines()[-_LAST_LINES:]
        ended = f"left with exit code {done.returncode}" if done.returncode else "printed no figures"
        raise BackendError("\n".join([f"{side.name} {ended}; {side.advice}. Its last lines:", *last]))
    return figures


def run_pairs(
    ours: Side, peer: Side, work: DataclassInstance, *, pairs: int, on_done: Callable[[str, Figures], object]
) -> list[Pair]:
    """So many pairs, ours first in each. `on_done` is told the side's name and its figures each time."""
    measured = []
    for _ in range(pairs):
        both = []
        for side in (ours, peer):
            both.append(run_side(side, work))
            on_done(side.name, both[-1])
        measured.append(Pair(*both))
    return measured


def significant(value: float, digits: int = _DIGITS) -> float:
    """Rounded to so many digits that mean something."""
    return float(f"{value:.{digits}g}")


def _last_object(output: str) -> Figures | None:
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
