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
class Trial:
    """A side and what it is to do."""

    side: Side
    work: DataclassInstance

    def run(self) -> Figures:
        """The figures that the side prints. Raises BackendError with its last lines if it prints none."""
        return run_side(self.side, self.work)


@dataclass(frozen=True, slots=True)
class Measured:
    """What both sides printed, pair by pair."""

    ours: Sequence[Figures]
    peer: Sequence[Figures] | None
    """None: nothing was compared with."""


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


def run_pairs(ours: Trial, peer: Trial | None, *, pairs: int, on_start: Callable[[str], object]) -> Measured:
    """So many pairs, ours first in each; ours alone if there is no peer.

    on_start: called with the name of a side before each measurement.
    """
    of_ours: list[Figures] = []
    of_peer: list[Figures] = []
    for _ in range(pairs):
        on_start(ours.side.name)
        of_ours.append(ours.run())
        if peer is not None:
            on_start(peer.side.name)
            of_peer.append(peer.run())
    return Measured(of_ours, of_peer if peer is not None else None)


def significant(value: float) -> float:
    """Rounded to the digits that mean something."""
    return float(f"{value:.4g}")


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
