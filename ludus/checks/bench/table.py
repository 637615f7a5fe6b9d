"""The table of all benches, from `benches.toml`: the measuring function, the compared result, and further columns.

Knows: names of results, peers' scripts.  Knows not: processes, terminals. Measuring functions are imported by `runner`.
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
    """The rows in the results; results without rows are a single row."""
    rows: Sequence[Results] = results.get("rows", [results])
    return rows


def _of_steps(results: Results) -> Sequence[Results]:
    """The median step, without the first one of a process, which is a warm-up."""
    lines = results["steps"][1:]
    names = ("seconds", "rollout_s", "train_s", "publish_s")
    medians = {name: statistics.median(line[name] for line in lines) for name in names if name in lines[0]}
    return [{**results, "task": "sums", **medians}]


def _of_gateway(results: Results) -> Sequence[Results]:
    """A row with requests per second, then rows with the time added to the engine's, in milliseconds."""
    added = {"p50_s": "p50", "p99_s": "p99", "first_token_s": "until the first token"}
    times = [
        {"result": f"added ms, one at a time, {words}", "ms": results[name] * 1e3} for name, words in added.items()
    ]
    return [{**results, "result": f"requests/s, {results.get('requests')} at once"}, *times]


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench. A compared result whose name ends in `_per_s` is a rate (more is faster), any other is a time."""

    measure: str
    """MODULE:FUNCTION in this folder; the type of its argument is the type of the work."""
    compared: tuple[str, ...] = ()
    """Names of the compared result; the first that a row has is used."""
    unit: str = ""
    row: str = ""
    """The result that identifies a row."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Headers of further columns, by result; `peer_NAME` is a result of the peer, and {peer} is replaced by its
    name."""
    printed: Literal["rows", "steps", "added times"] = "rows"
    """The form of its results."""
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the peer's name: its script, its environment ('': that of Ludus itself), and its arguments."""

    def rows(self, results: Results) -> Sequence[Results]:
        """The printed results as rows, with the names above."""
        return _ROWS[self.printed](results)


_ROWS: Mapping[str, Callable[[Results], Sequence[Results]]] = {
    "rows": as_rows,
    "steps": _of_steps,
    "added times": _of_gateway,
}
BENCHES: Mapping[str, Bench] = TypeAdapter(dict[str, Bench]).validate_python(
    tomllib.loads(Path(__file__).with_name("benches.toml").read_text(encoding="utf-8"))
)
"""All benches by name; those without `compared` are part of another, or are shown without a comparison."""
