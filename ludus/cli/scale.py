"""`ludus bench routing`, `replicas` and `overlap`: what more engines, and rollouts that run ahead, are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ludus.checks.bench.machine import machine
from ludus.checks.bench.pairs import Trial, run_pairs, significant
from ludus.checks.bench.results import compared, result
from ludus.checks.bench.routing.load import SimulatedSession, SyntheticLoad, recorded_sessions
from ludus.checks.bench.routing.policies import POLICIES
from ludus.checks.bench.routing.simulate import simulate
from ludus.checks.bench.sides import our_side
from ludus.checks.bench.workloads import OverlapWork, ReplicasWork
from ludus.cli.console import counting
from ludus.cli.display import columns, finish, parse_numbers
from ludus.cli.options import JsonFigures
from ludus.errors import UserError
from ludus.models.resolve import resolve_model


def routing(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder: its training episodes are asked again. None: made-up agents."),
    ] = None,
    replicas: Annotated[str, typer.Option(help="Numbers of replicas; a row for each and each policy.")] = "8,64",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions for each replica; half of them play at once.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the made-up agents.")] = 0,
    as_json: JsonFigures = False,
) -> None:
    """How do replicas share their work under the router's policy, and under simpler ones?

    A simulation: replicas are arithmetic, sessions are groups of agents
    with tools and long tails, or those that a run has recorded. p50, p95
    and p99 are of the calls, from asking to the last token.

    [bold]Examples:[/]  ludus bench routing --replicas 8,64,1000

      ludus bench routing runs/guess --replicas 4
    """
    numbers = parse_numbers(replicas)
    rows: list[Mapping[str, Any]] = []
    with counting("routing", len(numbers) * len(POLICIES)) as bar:
        for num_replicas in numbers:
            load = _load(run, num_replicas * sessions, seed)
            for name, policy in POLICIES.items():
                bar.begin(f"{name}, {num_replicas} replicas")
                at_once = max(1, len(load) // 2)
                rows.append(simulate(load, policy, num_replicas=num_replicas, at_once=at_once).row(name, num_replicas))
    times = columns(p50_s="p50 s", p95_s="p95 s", p99_s="p99 s", session_p99_s="session p99 s")
    shares = columns(idle_share="idle", cached_share="prompt known", sessions_per_s="sessions/s")
    headers = {**columns("policy", "replicas"), **times, **shares, "decision_us": "µs a decision"}
    finish({"bench": "routing", "rows": rows, "machine": machine()}, headers, as_json)


def replicas(
    number: Annotated[int, typer.Option("--replicas", min=2, help="Against one.")] = 2,
    groups: Annotated[int, typer.Option(min=1, help="Groups of four episodes of two turns.")] = 64,
    pairs: Annotated[int, typer.Option(min=1, help="How often each side is measured, in turn.")] = 3,
    model: Annotated[str, typer.Option(help="Its tokenizer is used.")] = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """How many more episodes a second do two replicas play than one?

    Engines of scripted answers that sample eight calls at once, a token
    every 50 ms, behind the router and the gateway: what is measured is
    whether anything else stands in the way.

    [bold]Example:[/]  ludus bench replicas
    """
    work = ReplicasWork(str(resolve_model(model)), number, groups=groups)
    ours = Trial(replace(our_side("replicas"), name=f"{number} replicas"), work)
    one = Trial(replace(our_side("replicas"), name="one replica"), replace(work, replicas=1))
    with counting("replicas", 2 * pairs) as bar:
        measured = run_pairs(ours, one, pairs=pairs, on_start=bar.begin)
    row = compared(measured, "episodes_per_s")
    body = result("replicas", [{"work": f"{groups} groups", **row, "replicas": number}], measured)
    headers = columns("work", ours=f"episodes/s on {number}", peer="on one", ratio="ratio (range)")
    finish(body, headers, as_json)


def overlap(
    run: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="A recipe, whose agent asks the model over HTTP.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings on top of the file.")
    ] = None,
    ahead: Annotated[str, typer.Option(help="Values of rollout.max_head_offpolicyness; the first is the base.")] = (
        "0,1,2,4,8"
    ),
    tool: Annotated[str, typer.Option(help="Least and most seconds of a tool.")] = "0.2,2",
    tools: Annotated[int, typer.Option(min=1, help="Tools before each call of the model, one after the other.")] = 1,
    seeds: Annotated[str, typer.Option(help="A run of each value for each.")] = "0",
    as_json: JsonFigures = False,
) -> None:
    """What is it worth to agents with slow tools that rollouts run ahead of training?

    The recipe is trained once for each value, every call of the model
    behind tools that take 0.2 to 2 s each. Episodes a second count the whole
    training; the reward is that of the last quarter of the steps.

    [bold]Example:[/]  ludus bench overlap run.yaml --ahead 0,4
    """
    least_s, most_s = _seconds(tool)
    values, chosen = parse_numbers(ahead, least=0), parse_numbers(seeds, least=0)
    measured: dict[int, list[Mapping[str, Any]]] = {value: [] for value in values}
    with counting("overlap", len(values) * len(chosen)) as bar:
        for seed in chosen:
            for value in values:
                bar.begin(f"{value} ahead, seed {seed}")
                work = OverlapWork(str(run), tuple(overrides or ()), value, least_s, most_s, tools, seed)
                measured[value].append(Trial(our_side("overlap"), work).run())
    rows = overlap_rows(measured)
    speed = columns("ahead", episodes_per_s="episodes/s", ratio="ratio (range)", step_s="s/step", reward="reward")
    headers = {**speed, **columns(reward_error="±", success="success", stale_versions="versions old")}
    finish({"bench": "overlap", "rows": rows, "machine": machine()}, headers, as_json)


def overlap_rows(measured: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each value: means over seeds, and episodes a second over those of the first value, seed by seed."""
    first = next(iter(measured.values()))
    rows = []
    for value, figures in measured.items():
        ratios = [mine["episodes_per_s"] / base["episodes_per_s"] for mine, base in zip(figures, first, strict=True)]
        row: dict[str, Any] = {"ahead": value, "ratio": significant(sum(ratios) / len(ratios))}
        row |= {"ratio_min": significant(min(ratios)), "ratio_max": significant(max(ratios))}
        for name in ("episodes_per_s", "step_s", "reward", "reward_error", "success", "stale_versions"):
            known = [each[name] for each in figures if each[name] is not None]
            row[name] = significant(sum(known) / len(known)) if known else None
        rows.append(row)
    return rows


def _load(run: Path | None, num_sessions: int, seed: int) -> Sequence[SimulatedSession]:
    if run is None:
        load = SyntheticLoad(num_groups=1, seed=seed)
        return replace(load, num_groups=-(-num_sessions // load.group_size)).sessions()
    once = recorded_sessions(run)
    return recorded_sessions(run, times=max(1, -(-num_sessions // len(once))))


def _seconds(text: str) -> tuple[float, float]:
    try:
        least_s, most_s = (float(part) for part in text.split(","))
    except ValueError:
        least_s, most_s = 1.0, 0.0
    if not 0 <= least_s <= most_s:
        raise UserError(f"--tool {text} must be two numbers of seconds with a comma between, such as 0.2,2")
    return least_s, most_s
