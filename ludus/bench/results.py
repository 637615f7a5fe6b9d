"""What the sides printed, as rows of one result: ours, the peer's, their ratio, our share of the ceiling.

Knows: figures of pairs.  Knows not: processes, terminals.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.bench.machine import machine
from ludus.bench.pairs import Comparison, Figures, significant

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What both sides printed, pair by pair."""

    ours: Sequence[Figures]
    peer: Sequence[Figures] | None
    """None: nothing was compared with."""

    def row(
        self,
        figure: Callable[[Figures], float],
        *,
        ceiling_share: Callable[[Figures], float] | None,
        less_is_faster: bool = False,
    ) -> dict[str, Any]:
        """One figure of both sides. ceiling_share: of our figures. None: no ceiling is known."""
        ours = [figure(each) for each in self.ours]
        row: dict[str, Any] = {"ours": significant(statistics.median(ours))}
        row |= dict.fromkeys(("peer", "ratio", "ratio_min", "ratio_max"))
        if self.peer is not None:
            row |= Comparison.of(ours, [figure(each) for each in self.peer], less_is_faster=less_is_faster).to_json()
        shares = [ceiling_share(each) for each in self.ours] if ceiling_share is not None else []
        return row | {"ceiling_share": significant(statistics.median(shares)) if shares else None}

    def median(self, name: str, *, of_peer: bool = False) -> float | None:
        """Median of a figure by name. None: that side was not measured."""
        figures = self.peer if of_peer else self.ours
        return None if figures is None else significant(statistics.median(each[name] for each in figures))


def result(bench: str, rows: Sequence[Row], measured: Measured) -> dict[str, Any]:
    """The object of `--json`: the first row's figures, every row, and what it was measured on."""
    versions = {"ours": measured.ours[0].get("versions", {})}
    if measured.peer is not None:
        versions["peer"] = measured.peer[0].get("versions", {})
    return {"bench": bench, **rows[0], "rows": list(rows), "machine": machine(), "versions": versions}


def sample_rows(measured: Measured) -> list[Row]:
    """Tokens a second for every number of requests."""
    rows = []
    for idx, first in enumerate(measured.ours[0]["rows"]):

        def share(figures: Figures, idx: int = idx) -> float:
            row = figures["rows"][idx]
            return float(row["decode_tokens_per_s"] / row["ceiling_tokens_per_s"])

        def rate(figures: Figures, idx: int = idx) -> float:
            return float(figures["rows"][idx]["tokens_per_s"])

        decoded = statistics.median(figures["rows"][idx]["decode_tokens_per_s"] for figures in measured.ours)
        row = measured.row(rate, ceiling_share=share)
        rows.append({"requests": first["requests"], **row, "decode_tokens_per_s": significant(decoded)})
    return rows
