"""Every bench, one record each, from `benches.toml`: what measures it, what is compared, and what is shown beside.

Knows: names of results, peers' scripts.  Knows not: processes, terminals; what measures is imported by who runs it.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from ludus.checks.bench.pairs import Results


def as_rows(results: Results) -> Sequence[Results]:
    """The rows that were printed; results without any are a row themselves."""
    rows: Sequence[Results] = results.get("rows", [results])
    return rows


def _of_steps(results: Results) -> Sequence[Results]:
    """The median step; the first one of a process is to warm up."""
    lines = results["steps"][1:]
    names = ("seconds", "rollout_s", "train_s", "publish_s")
    medians = {name: statistics.median(line[name] for line in lines) for name in names if name in lines[0]}
    return [{**results, "task": "sums", **medians}]


def _of_gateway(results: Results) -> Sequence[Results]:
    """Requests a second, then what is added to the engine's time, in milliseconds."""
    added = {"p50_s": "p50", "p99_s": "p99", "first_token_s": "until the first token"}
    times = [
        {"result": f"added ms, one at a time, {words}", "ms": results[name] * 1e3} for name, words in added.items()
    ]
    return [{**results, "result": f"requests/s, {results.get('requests')} at once"}, *times]


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench. A name that ends in `_per_s` is a rate, of which more is faster; any other compared one is a time."""

    measure: str
    """MODULE:FUNCTION of this folder; the type of its argument is that of the work."""
    compared: tuple[str, ...] = ()
    """The result that is compared; of several names the first that a row has."""
    unit: str = ""
    row: str = ""
    """The result that names a row."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Headers of further results, by name; those of the peer are called `peer_NAME`, and {peer} is who it is."""
    printed: Literal["rows", "steps", "added times"] = "rows"
    """What its results hold."""
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name the peer's script, the environment that it needs ('': that of Ludus itself), and its arguments."""

    def rows(self, results: Results) -> Sequence[Results]:
        """What was printed, row by row, with the names above."""
        return _ROWS[self.printed](results)


_ROWS: Mapping[str, Callable[[Results], Sequence[Results]]] = {
    "rows": as_rows,
    "steps": _of_steps,
    "added times": _of_gateway,
}
BENCHES: Mapping[str, Bench] = TypeAdapter(dict[str, Bench]).validate_python(
    tomllib.loads(Path(__file__).with_name("benches.toml").read_text(encoding="utf-8"))
)
"""By name; those that compare nothing are a part of another, or are shown as they are."""
