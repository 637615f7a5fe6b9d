"""Combines the runners' results into rows: ours, the peer's, their ratio, our share of the ceiling.

Knows: measurements of pairs.  Knows not: processes, terminals.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ludus.checks.bench.pairs import Measured, Results, compare, significant
from ludus.checks.bench.table import Bench

_PEAK = "peak_card_mb"


def rows_of(bench: Bench, measured: Measured) -> list[dict[str, Any]]:
    """A row for each row of ours: medians, and the ratio with its range. Without a peer the ratio is None.

    If a peer printed a single row, it is compared with all of ours.
    """
    ours = [_rows(bench, each) for each in measured.ours]
    peer = [_rows(bench, each) for each in measured.peer or ()]
    return [
        _row(bench, [each[idx] for each in ours], [each[min(idx, len(each) - 1)] for each in peer])
        for idx in range(len(ours[0]))
    ]


def _rows(bench: Bench, results: Results) -> list[Results]:
    """The rows that a process printed, each with the peak of its memory on a card, if it computed on one."""
    held = {name: results[name] for name in (_PEAK,) if name in results}
    return [{**held, **row} for row in bench.rows(results)]


def _row(bench: Bench, ours: Sequence[Results], peer: Sequence[Results]) -> dict[str, Any]:
    name = next(name for name in bench.compared if name in ours[0])
    row: dict[str, Any] = {bench.row: ours[0][bench.row], "ours": median(ours, name)}
    row |= dict.fromkeys(("peer", "ratio", "ratio_min", "ratio_max"))
    if peer:
        rates = ([each[name] for each in side] for side in (ours, peer))
        row |= compare(*rates, less_is_faster=not name.endswith("_per_s"))
    row["ceiling_share"] = median(ours, "ceiling_share")
    for other in (*bench.beside, *([_PEAK] if _PEAK in ours[0] else [])):
        row[other] = median(peer, other.removeprefix("peer_")) if other.startswith("peer_") else median(ours, other)
    return row


def median(results: Sequence[Results], name: str) -> float | None:
    """The median of a result by name. None: it was not measured."""
    known = [each[name] for each in results if each.get(name) is not None]
    return significant(statistics.median(known)) if known else None


def result(name: str, bench: Bench, measured: Measured) -> dict[str, Any]:
    """The object of `--json`: the first row's results, every row, our card, and the versions of both sides."""
    rows = rows_of(bench, measured)
    versions = {"ours": measured.ours[0].get("versions", {})}
    if measured.peer is not None:
        versions["peer"] = measured.peer[0].get("versions", {})
    on = {key: measured.ours[0][key] for key in ("card",) if key in measured.ours[0]}
    return {"bench": name, **rows[0], "rows": rows, **on, "versions": versions}
