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


def train_row(measured: Measured, *, flops_per_weight: int | None) -> Row:
    """Tokens a second and the peaks of memory.

    flops_per_weight: operations that a token costs for each weight, 6 in full training (Kaplan et al., arXiv
    2001.08361, sec. 2.1). None: the work is not all in products of whole weights, so no share is given.
    """

    def share(figures: Figures) -> float:
        operations = flops_per_weight * figures["num_parameters"] * figures["tokens_per_s"] if flops_per_weight else 0
        return float(operations / figures["matrix_flops_per_s"])

    row = measured.row(
        lambda figures: float(figures["tokens_per_s"]), ceiling_share=share if flops_per_weight is not None else None
    )
    peaks = {"peak_mb": measured.median("peak_mb"), "peer_peak_mb": measured.median("peak_mb", of_peer=True)}
    return {**row, **peaks, "matrix_gflops_per_s": significant(measured.median("matrix_flops_per_s") or 0.0) / 1e9}


def step_row(measured: Measured) -> Row:
    """Seconds of a step, the first of each process left out; the ratio is the peer's seconds over ours."""
    row = measured.row(median_step_s, ceiling_share=None, less_is_faster=True)
    peaks = {"peak_mb": measured.median("peak_mb"), "peer_peak_mb": measured.median("peak_mb", of_peer=True)}
    parts = {
        name: significant(statistics.median(line[name] for each in measured.ours for line in each["steps"][1:]))
        for name in ("rollout_s", "train_s", "publish_s")
    }
    return {**row, **peaks, **parts}


def median_step_s(figures: Figures) -> float:
    return statistics.median(line["seconds"] for line in figures["steps"][1:])


def publish_rows(measured: Measured) -> list[Row]:
    """Seconds until the engine samples with new weights; the ratio is the peer's seconds over ours."""
    rows = []
    for idx, first in enumerate(measured.ours[0]["rows"]):
        ours = [figures["rows"][idx] for figures in measured.ours]
        both = Measured(
            [{"seconds": each["publish_s"], "share": each["copy_ceiling_share"]} for each in ours],
            None if measured.peer is None else [{"seconds": each["reload_s"]} for each in measured.peer],
        )
        row = both.row(
            lambda figures: float(figures["seconds"]),
            ceiling_share=lambda figures: float(figures["share"]),
            less_is_faster=True,
        )
        names = ("copy_s", "extra_s", "carried_tokens", "stale_tokens")
        rows.append({"kv": first["kv"], **row, **{name: Measured(ours, None).median(name) for name in names}})
    return rows
