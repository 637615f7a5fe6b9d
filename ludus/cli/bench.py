"""`ludus bench`: how fast this machine samples, trains and steps, beside what one would pick instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.checks.bench.curves import Line, compare_curves, curve_file, read_curve, write_curve
from ludus.checks.bench.machine import machine
from ludus.checks.bench.pairs import Figures, Measured, Trial, run_pairs
from ludus.checks.bench.results import gateway_rows, publish_rows, result, sample_rows, step_row, trace_row, train_row
from ludus.checks.bench.sides import PEERS_FOLDER, our_side, peer_side
from ludus.checks.bench.workloads import (
    LORA_RANK,
    MemoryWork,
    PublishWork,
    SampleWork,
    StepWork,
    TraceWork,
    TrainWork,
    TurnsWork,
    Workload,
    chat_encoder,
    gateway_work,
    sample_batches,
    sums,
    train_rows,
    vocab_size,
)
from ludus.cli.console import counting, say_json
from ludus.cli.display import columns, finish, parse_numbers, rates, result_console, show
from ludus.cli.options import JsonFigures, Model
from ludus.compat.config import load_config
from ludus.errors import UserError
from ludus.models.resolve import resolve_model

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of Ludus's side, such as trainer.row_tokens=512."),
]
Pairs = Annotated[int, typer.Option(min=1, help="How often each side is measured, in turn, in a fresh process.")]
Peers = Annotated[Path, typer.Option(help="Folder with the peers' environments, made by bench/peers.sh.")]
NewTokens = Annotated[int, typer.Option(min=4, help="Tokens sampled for every request, no more and no less.")]
Profile = Annotated[bool, typer.Option("--profile", help="Show where Ludus's time goes, instead of comparing.")]

CURVES = Path("bench") / "curves"
# Operations a token for each weight: two forward, four backward.
_FLOPS_PER_WEIGHT = 6


class TrainKind(StrEnum):
    """What is trained."""

    DENSE = "dense"
    GROUP = "group"


def sample(
    overrides: Overrides = None,
    vs: Annotated[
        str | None, typer.Option(help="vllm, transformers or transformers-batching. Without it: Ludus alone.")
    ] = None,
    requests: Annotated[str, typer.Option(help="Requests at once; several numbers give a row each.")] = "64",
    new_tokens: NewTokens = 64,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    profile: Profile = False,
    as_json: JsonFigures = False,
) -> None:
    """How many tokens a second are sampled?

    Short stories at temperature 1 with logprobs, timed from the first
    submit to the last token. The ceiling is a decoding step with nothing in
    it but the model's linear layers, measured in the same minute.

    [bold]Example:[/]  ludus bench sample --vs vllm --requests 1,64,256
    """
    folder = _folder(model, overrides)
    batches = sample_batches(chat_encoder(folder), parse_numbers(requests))
    work = SampleWork(str(folder), tuple(overrides or ()), batches=batches, new_tokens=new_tokens)
    if profile:
        return _profile("sample", work, as_json)
    measured = _measure("sample", work, _peer("sample", vs, peers, work), pairs)
    more = columns(decode_tokens_per_s="decoding alone", bandwidth_share="of bandwidth")
    headers = {"requests": "requests", **rates("tokens/s", vs), **more}
    return finish(result("sample", sample_rows(measured), measured), headers, as_json)


def train(
    overrides: Overrides = None,
    vs: Annotated[str | None, typer.Option(help="transformers, or full: Ludus without LoRA and checkpointing.")] = None,
    work: Annotated[
        TrainKind, typer.Option(help="dense: 8 x 256 tokens, optimizer included. group: 8 x (200 shared + 32).")
    ] = TrainKind.DENSE,
    lora: Annotated[bool, typer.Option("--lora", help="Train adapters of rank 16 alone, on both sides.")] = False,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute layers in the backward pass, on both sides.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Steps of all sizes, and the slope of resident memory over them.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a measurement, after two to warm up.")] = 3,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    profile: Profile = False,
    as_json: JsonFigures = False,
) -> None:
    """How many tokens a second are trained on, and in how much memory?

    The peer is what one would write down with transformers: bf16 weights,
    cross entropy in fp32, AdamW. The ceiling is the rate of a bf16 matrix
    product, measured in the same minute, over 6 operations a weight.

    [bold]Examples:[/]  ludus bench train --vs transformers --work group

      ludus bench train --memory --steps 500
    """
    folder, settings = _folder(model, overrides), tuple(overrides or ())
    if memory:
        return _memory(MemoryWork(str(folder), settings, vocab_size=vocab_size(folder), steps=steps), as_json)
    rows, num_shared = train_rows(work.value, vocab_size(folder))
    asked = TrainWork(
        str(folder),
        settings,
        kind=work.value,
        rows=rows,
        shared_tokens=num_shared,
        steps=steps,
        lora_rank=LORA_RANK if lora else None,
        checkpointing=checkpointing,
    )
    if profile:
        return _profile("train", asked, as_json)
    if vs == "full":
        full = replace(asked, lora_rank=None, checkpointing=False)
        peer: Trial | None = Trial(replace(our_side("train"), name="full"), full)
    else:
        peer = _peer("train", vs, peers, asked)
    measured = _measure("train", asked, peer, pairs)
    is_full = work is TrainKind.DENSE and not lora
    peaks = columns(peak_mb="ludus peak MB", peer_peak_mb=f"{vs} peak MB")
    row = {"work": work.value, **train_row(measured, flops_per_weight=_FLOPS_PER_WEIGHT if is_full else None)}
    headers = {"work": "work", **rates("tokens/s", vs), **peaks, "matrix_gflops_per_s": "matrix GFLOP/s"}
    return finish(result("train", [row], measured), headers, as_json)


def step(
    overrides: Overrides = None,
    vs: Annotated[str | None, typer.Option(help="trl. Without it: Ludus alone.")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of a measurement; the first is to warm up.")] = 4,
    quality: Annotated[
        bool, typer.Option("--quality", help="Compare the rewards of a run with those recorded of the peer.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="With --quality: run the peer too and record it.")] = False,
    seeds: Annotated[str, typer.Option(help="With --quality: a run for each.")] = "0,1,2",
    curves: Annotated[Path, typer.Option(help="With --quality: where the rewards of all runs are kept.")] = CURVES,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    as_json: JsonFigures = False,
) -> None:
    """How long does a whole step of GRPO take: sampling, training, publishing?

    Sums of two numbers, 8 questions and 8 answers to each, AdamW, no KL.
    Ludus runs its real loop with an agent that talks to the gateway. The
    ratio is the peer's seconds over ours.

    [bold]Examples:[/]  ludus bench step --vs trl

      ludus bench step --vs trl --quality --steps 40 --seeds 0,1,2
    """
    folder, settings = _folder(model, overrides), tuple(overrides or ())
    works = []
    for seed in parse_numbers(seeds, least=0) if quality else (0,):
        questions, answers = sums(seed)
        works.append(StepWork(str(folder), settings, seed=seed, questions=questions, answers=answers, steps=steps))
    if quality:
        return _quality(works, vs, peers if record else None, curves, as_json)
    measured = _measure("step", works[0], _peer("step", vs, peers, works[0]), pairs)
    peaks = columns(peak_mb="ludus peak MB", peer_peak_mb=f"{vs} peak MB")
    parts = columns(rollout_s="sampling", train_s="training", publish_s="publish")
    return finish(
        result("step", [{"task": "sums", **step_row(measured)}], measured),
        {"task": "task", **rates("s/step", vs), **peaks, **parts},
        as_json,
    )


def gateway(
    vs: Annotated[str | None, typer.Option(help="litellm or rllm. Without it: Ludus alone.")] = None,
    lanes: Annotated[int, typer.Option("--requests", min=1, help="Requests at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long so many are asked; one at a time, half of it.")] = 5,
    turns: Annotated[int, typer.Option(min=0, help="Turns of the long session, as in `bench turns`; 0 is none.")] = 200,
    pairs: Pairs = 5,
    model: Annotated[str, typer.Option(help="Its tokenizer and template are used.")] = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    as_json: JsonFigures = False,
) -> None:
    """What does the gateway add to the engine's time, and how many requests a second does it answer?

    Scripted answers behind the gateway, sessions of chat turns in front of
    it, through its socket, every turn recorded. A peer stands in front of a
    server that answers as fast as it is asked. The ceiling is the same
    client in front of an application that does nothing.

    [bold]Example:[/]  ludus bench gateway --vs litellm
    """
    folder = resolve_model(model)
    work = gateway_work(folder, lanes=lanes, seconds=seconds)
    peer = _peer("gateway", vs, peers, work)
    with counting("gateway", pairs * (1 if peer is None else 2) + bool(turns)) as bar:
        measured = run_pairs(Trial(our_side("gateway"), work), peer, pairs=pairs, on_start=bar.begin)
        if turns:
            bar.begin("turns")
            counted = Trial(our_side("turns"), TurnsWork(str(folder), turns // 2, turns, 1)).run()["rows"]
    body = {**result("gateway", gateway_rows(measured, lanes), measured), "turns": counted if turns else None}
    if turns:
        show(result_console(), counted, turns_columns(turns))
    finish(body, {"figure": "", **rates("", vs)}, as_json)


def turns(
    long: Annotated[
        int, typer.Option("--turns", min=2, help="Tool-calling turns of the long session; the other has half.")
    ] = 200,
    pairs: Annotated[int, typer.Option(min=1, help="How often both sessions are timed.")] = 5,
    model: Annotated[str, typer.Option(help="Its tokenizer is used: an embedded name, a folder, or a hub id.")] = (
        "smollm2-135m"
    ),
    as_json: JsonFigures = False,
) -> None:
    """Do twice as many turns cost twice as much?

    A session of 200 tool-calling turns against one of 100, through the
    gateway's socket, by counters: characters tokenized, nodes of the graph,
    messages rendered and read, tokens prefilled; and the gateway's time
    without the decoding of JSON. `at most` is the limit of each ratio.

    [bold]Example:[/]  ludus bench turns
    """
    work = TurnsWork(str(resolve_model(model)), long // 2, long, pairs)
    body = _alone("turns", "turns", work)
    finish({**body, "machine": machine()}, turns_columns(long), as_json)


def publish(
    overrides: Overrides = None,
    vs: Annotated[
        str | None, typer.Option(help="reload: the model saved and loaded again. Without it: Ludus alone.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 64,
    new_tokens: NewTokens = 64,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """What does it cost to publish new weights while requests are being sampled?

    Half-way through the answers the masters are cast into the tensors that
    sample. Keys and values are kept, or computed again. The ratio is the
    peer's seconds over ours; the ceiling is a bare copy of as many bytes.

    [bold]Example:[/]  ludus bench publish --vs reload
    """
    folder = _folder(model, overrides)
    prompts = sample_batches(chat_encoder(folder), (requests,))[0]
    work = PublishWork(str(folder), tuple(overrides or ()), prompts=prompts, new_tokens=new_tokens)
    if vs not in (None, "reload"):
        raise UserError(f"--vs {vs} cannot be compared in this bench; known: reload")
    peer = None if vs is None else Trial(replace(our_side("reload"), name="reload"), work)
    measured = _measure("publish", work, peer, pairs)
    extra = columns(copy_s="copy s", extra_s="sampling longer by s")
    tokens = columns(carried_tokens="tokens carried on", stale_tokens="stale in cache")
    headers = {"kv": "keys and values", **rates("s", vs), **extra, **tokens}
    finish(result("publish", publish_rows(measured), measured), headers, as_json)


def trace(
    overrides: Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of a measurement, 32 at once.")] = 256,
    new_tokens: NewTokens = 32,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """What do traces in MLflow cost?

    Episodes of three turns and three calls of a tool, kept in a run's
    folder: with `trace.backend: mlflow` on SQLite, and without, in turn. The
    ratio is the tokens a second with traces over those without.

    [bold]Example:[/]  ludus bench trace
    """
    questions, _ = sums(0)
    folder = _folder(model, overrides)
    work = TraceWork(str(folder), tuple(overrides or ()), questions=questions, new_tokens=new_tokens, episodes=episodes)
    plain = Trial(replace(our_side("trace"), name="without traces"), replace(work, traced=False))
    measured = _measure("trace", work, plain, pairs)
    ours = columns("work", ours="tokens/s with traces", peer="without", ratio="ratio (range)")
    headers = {**ours, **columns(episodes_per_s="episodes/s", late_traces="traces late", leaving_s="by s")}
    finish(result("trace", [{"work": f"{episodes} episodes", **trace_row(measured)}], measured), headers, as_json)


def _folder(model: str, overrides: Sequence[str] | None) -> Path:
    """The model that both sides get: that of the setting `model.path`, which no peer reads itself, or of --model."""
    if overrides and any(each.startswith("model.path=") for each in overrides):
        return resolve_model(load_config(None, tuple(overrides)).model.path)
    return resolve_model(model)


def _peer(bench: str, vs: str | None, peers: Path, work: DataclassInstance) -> Trial | None:
    return None if vs is None else Trial(peer_side(vs, bench, peers), work)


def _measure(bench: str, work: Workload, peer: Trial | None, pairs: int) -> Measured:
    work.config()  # a wrong override is told before anything is measured
    ours = Trial(our_side(bench), work)
    with counting(bench, pairs * (1 if peer is None else 2)) as bar:
        return run_pairs(ours, peer, pairs=pairs, on_start=bar.begin)


def _profile(bench: str, work: Workload, as_json: bool) -> None:
    work.config()
    body = _alone(f"{bench} profile", f"{bench}-profile", work)
    console = result_console()
    known = body["recorded_share"] * sum(row["share"] for row in body["profile"] if row["part"] != "other")
    part = "wall time, and what the named parts are of it"
    total = {"part": part, "ms_per_step": body["ms_per_step"], "share": known}
    show(console, [*body["profile"], total], columns("part", ms_per_step="ms a step", share="share"))
    if as_json:
        say_json({"bench": f"{bench} profile", "known_share": known, **body, "machine": machine()})


def _memory(work: MemoryWork, as_json: bool) -> None:
    work.config()
    body = _alone(f"{work.steps} steps", "memory", work)
    console = result_console()
    headers = columns("steps", slope_mb_per_step="MB a step", peak_mb="peak MB")
    show(console, [{"steps": work.steps, **body}], headers)
    if as_json:
        say_json({"bench": "memory", "steps": work.steps, **body, "machine": machine()})


def _quality(works: Sequence[StepWork], vs: str | None, peers: Path | None, folder: Path, as_json: bool) -> None:
    """A run for each work, its rewards kept beside the peer's. peers: None: the peer was recorded before."""
    name = vs or "trl"
    recorded: dict[int, Sequence[Line]] = {}
    if peers is None:
        recorded = {w.seed: read_curve(curve_file(folder, name, w.seed)) for w in works}
    ours: dict[int, Sequence[Line]] = {}
    with counting("quality", len(works) * (1 if peers is None else 2)) as bar:
        for work in works:
            jobs = {"ludus": Trial(our_side("step"), work)}
            jobs |= {} if peers is None else {name: Trial(peer_side(name, "step", peers), work)}
            for side, job in jobs.items():
                bar.begin(f"{side}, seed {work.seed}")
                lines = job.run()["steps"]
                write_curve(curve_file(folder, side, work.seed), lines)
                (ours if side == "ludus" else recorded)[work.seed] = lines
    rows = compare_curves(ours, recorded)
    console = result_console()
    headers = columns("seed", ours="ludus", ours_error="±", peer=name, peer_error="± ", no_worse="no worse")
    show(console, rows, headers)
    if as_json:
        say_json({"bench": "quality", **rows[-1], "rows": rows, "machine": machine()})


def _alone(label: str, bench: str, work: DataclassInstance) -> Figures:
    with counting(label, 1) as bar:
        bar.begin("ludus")
        return Trial(our_side(bench), work).run()


def turns_columns(long: int) -> dict[str, str]:
    return columns("counter", short=f"{long // 2} turns", long=f"{long} turns", ratio="ratio", most="at most")
