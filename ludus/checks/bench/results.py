"""What the sides printed, as rows of one result: ours, the peer's, their ratio, our share of the ceiling.

Knows: measurements of pairs.  Knows not: processes, terminals.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ludus.checks.bench.machine import machine
from ludus.checks.bench.pairs import Comparison, Figures, Measured, significant

Row = Mapping[str, Any]
_ADDED = {"p50_s": "p50", "p99_s": "p99", "first_token_s": "until the first token"}


def compared(
    measured: Measured,
    figure: str,
    *,
    ceiling_share: Callable[[Figures], float] | None = None,
    less_is_faster: bool = False,
) -> dict[str, Any]:
    """One figure of both sides, by name: medians, and the ratio with its range. Without a peer those are None.

    ceiling_share: of our figures. None: no ceiling is known.
    """
    ours = [float(each[figure]) for each in measured.ours]
    row: dict[str, Any] = {"ours": significant(statistics.median(ours))}
    row |= dict.fromkeys(("peer", "ratio", "ratio_min", "ratio_max"))
    if measured.peer is not None:
        theirs = [float(each[figure]) for each in measured.peer]
        row |= Comparison.of(ours, theirs, less_is_faster=less_is_faster).to_json()
    shares = [float(ceiling_share(each)) for each in measured.ours] if ceiling_share is not None else []
    return row | {"ceiling_share": significant(statistics.median(shares)) if shares else None}


def derived(measured: Measured, of: Callable[[Figures], Mapping[str, Any]]) -> Measured:
    """The same measurements in other figures, those of one row for example."""
    peer = None if measured.peer is None else [of(each) for each in measured.peer]
    return Measured([of(each) for each in measured.ours], peer)


def rows_of(measured: Measured) -> Iterator[Measured]:
    """For each row that ours printed that row of both sides; a peer that prints none has the same for all."""
    for idx in range(len(measured.ours[0]["rows"])):
        yield derived(measured, lambda figures, idx=idx: figures["rows"][idx] if "rows" in figures else figures)  # type: ignore[misc]


def median(figures: Sequence[Figures] | None, name: str) -> float | None:
    """Median of a figure by name. None: that side was not measured."""
    return None if figures is None else significant(statistics.median(each[name] for each in figures))


def result(bench: str, rows: Sequence[Row], measured: Measured) -> dict[str, Any]:
    """The object of `--json`: the first row's figures, every row, and what it was measured on."""
    versions = {"ours": measured.ours[0].get("versions", {})}
    if measured.peer is not None:
        versions["peer"] = measured.peer[0].get("versions", {})
    return {"bench": bench, **rows[0], "rows": list(rows), "machine": machine(), "versions": versions}


def sample_rows(measured: Measured) -> Sequence[Row]:
    """Tokens a second for every number of requests."""
    rows = []
    for each in rows_of(measured):
        row = compared(
            each, "tokens_per_s", ceiling_share=lambda row: row["decode_tokens_per_s"] / row["ceiling_tokens_per_s"]
        )
        row |= {name: median(each.ours, name) for name in ("decode_tokens_per_s", "bandwidth_share")}
        rows.append({"requests": each.ours[0]["requests"], **row})
    return rows


def train_row(measured: Measured, *, flops_per_weight: int | None) -> Row:
    """Tokens a second and the peaks of memory.

    flops_per_weight: operations that a token costs for each weight, 6 in full training (Kaplan et al., arXiv
    2001.08361, sec. 2.1). None: the work is not all in products of whole weights, so no share is given.
    """

    def share(figures: Figures) -> float:
        assert flops_per_weight is not None, "asked for where it is known alone"
        return float(
            flops_per_weight * figures["num_parameters"] * figures["tokens_per_s"] / figures["matrix_flops_per_s"]
        )

    row = compared(measured, "tokens_per_s", ceiling_share=None if flops_per_weight is None else share)
    rate = statistics.median(figures["matrix_flops_per_s"] for figures in measured.ours)
    return {**row, **peaks(measured), "matrix_gflops_per_s": significant(rate / 1e9)}


def step_row(measured: Measured) -> Row:
    """Seconds of a step, the first of each process left out; the ratio is the peer's seconds over ours."""
    row = compared(derived(measured, median_step), "seconds", less_is_faster=True)
    parts = {
        name: significant(statistics.median(line[name] for each in measured.ours for line in each["steps"][1:]))
        for name in ("rollout_s", "train_s", "publish_s")
    }
    return {**row, **peaks(measured), **parts}


def median_step(figures: Figures) -> Figures:
    return {"seconds": statistics.median(line["seconds"] for line in figures["steps"][1:])}


def publish_rows(measured: Measured) -> Sequence[Row]:
    """Seconds until the engine samples with new weights; the ratio is the peer's seconds over ours."""
    rows = []
    for each in rows_of(measured):
        both = derived(
            each, lambda row: {**row, "seconds": row["publish_s"] if "publish_s" in row else row["reload_s"]}
        )
        row = compared(both, "seconds", ceiling_share=lambda row: row["copy_ceiling_share"], less_is_faster=True)
        names = ("copy_s", "extra_s", "carried_tokens", "stale_tokens")
        rows.append({"kv": each.ours[0]["kv"], **row, **{name: median(each.ours, name) for name in names}})
    return rows


def trace_row(measured: Measured) -> Row:
    """Tokens a second with traces over those without, and how many traces were late, by how long."""
    row = compared(measured, "tokens_per_s")
    return {**row, **{name: median(measured.ours, name) for name in ("episodes_per_s", "late_traces", "leaving_s")}}


def gateway_rows(measured: Measured, lanes: int) -> Sequence[Row]:
    """Requests a second, and what is added to the engine's time, in milliseconds."""

    rate = compared(
        measured, "requests_per_s", ceiling_share=lambda each: each["requests_per_s"] / each["ceiling_requests_per_s"]
    )
    rows = [{"figure": f"requests/s, {lanes} at once", **rate}]
    in_ms = derived(measured, lambda figures: {name: figures[name] * 1e3 for name in _ADDED})
    for name, words in _ADDED.items():
        row = compared(in_ms, name, less_is_faster=True)
        rows.append({"figure": f"added ms, one at a time, {words}", **row})
    return rows


def peaks(measured: Measured) -> dict[str, float | None]:
    """Most memory that the processes ever held, in MiB."""
    return {"peak_mb": median(measured.ours, "peak_mb"), "peer_peak_mb": median(measured.peer, "peak_mb")}
