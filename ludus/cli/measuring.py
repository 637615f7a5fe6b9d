"""How the commands of `ludus bench` measure and show: ours and a peer in turn, ours alone, profiles, curves.

Knows: runners, pairs, tables.  Knows not: which bench it is, what its options are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.checks.bench.curves import curve_file, write_curve
from ludus.checks.bench.pairs import Results, Runner, run_pairs
from ludus.checks.bench.results import result
from ludus.checks.bench.runner import our_runner, peer_runner
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import MemoryWork, StepWork, Workload
from ludus.cli.console import counting
from ludus.cli.display import finish
from ludus.compat.config import load_config
from ludus.models.resolve import resolve_model

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def folder_of(model: str, overrides: Sequence[str] | None) -> Path:
    """The model for both sides: that of the setting `model.path`, which peers do not read, or of --model."""
    if overrides and any(each.startswith("model.path=") for each in overrides):
        return resolve_model(load_config(None, tuple(overrides)).model.path)
    return resolve_model(model)


def runner_of_peer(bench: str, vs: str | None, peers: Path, work: DataclassInstance) -> Runner | None:
    return None if vs is None else peer_runner(vs, bench, work, peers)


def compare(
    bench: str,
    work: DataclassInstance,
    peer: Runner | None,
    pairs: int,
    as_json: bool,
    *,
    ours: Runner | None = None,
    **more: object,
) -> None:
    """Measure ours and the peer in turn, and show the results.

    ours: None: Ludus, with this work.  more: additional fields of the JSON object.
    """
    ours = ours or our_runner(bench, work)
    with counting(bench, pairs * (1 if peer is None else 2)) as bar:
        measured = run_pairs(ours, peer, pairs=pairs, on_start=bar.begin)
    body = {**result(bench, BENCHES[bench], measured), **more}
    finish(body, headers_of(bench, ours.name, "" if peer is None else peer.name), as_json)


def headers_of(bench: str, ours: str, peer: str) -> dict[str, str]:
    """The columns of a comparison: both sides, their ratio, our share of the ceiling, and additional figures."""
    record = BENCHES[bench]
    sides = {"ours": f"{ours} {record.unit}".rstrip(), "peer": f"{peer} {record.unit}".rstrip()}
    beside = {name: header.format(peer=peer) for name, header in record.beside.items()}
    beside |= {"peak_card_mb": "peak MB of card"}
    return {record.row: record.row, **sides, "ratio": "ratio (range)", "ceiling_share": "of ceiling", **beside}


def measure_alone(label: str, bench: str, work: DataclassInstance) -> Results:
    with counting(label, 1) as bar:
        bar.begin("ludus")
        return our_runner(bench, work).run()


def show_profile(bench: str, work: Workload, as_json: bool) -> None:
    body = measure_alone(f"{bench} profile", f"{bench}-profile", work)
    known = body["recorded_share"] * sum(row["share"] for row in body["profile"] if row["part"] != "other")
    part = "wall time, and what the named parts are of it"
    rows = [*body["profile"], {"part": part, "ms_per_step": body["ms_per_step"], "share": known}]
    body = {"bench": f"{bench} profile", "known_share": known, **body}
    finish(body, {"part": "part", "ms_per_step": "ms a step", "share": "share"}, as_json, rows=rows)


def show_memory(work: MemoryWork, as_json: bool) -> None:
    body = {"bench": "memory", "steps": work.steps, **measure_alone(f"{work.steps} steps", "memory", work)}
    headers = {"steps": "steps", "slope_mb_per_step": "MB a step", "peak_mb": "peak MB"}
    headers |= {"peak_card_mb": "peak MB of card"}
    finish(body, headers, as_json, rows=[body])


def record_quality(
    works: Sequence[StepWork], folder: Path, name: str, peers: Sequence[str], environments: Path
) -> None:
    """Train a run for each work and side, and store each in its own file as soon as it is done."""
    runners = [(work.seed, our_runner("step", work, name)) for work in works]
    runners += [(work.seed, peer_runner(peer, "step", work, environments)) for work in works for peer in peers]
    record_curves(runners, folder)


def record_curves(runners: Sequence[tuple[int, Runner]], folder: Path) -> None:
    """Run them one after the other, and store what each learned: a line for each step, then a line with the rest."""
    with counting("curves", len(runners)) as bar:
        for seed, runner in runners:
            bar.begin(f"{runner.name}, seed {seed}")
            results = runner.run()
            rest = {key: value for key, value in results.items() if key != "steps"}
            write_curve(curve_file(folder, runner.name, seed), [*results["steps"], rest])
