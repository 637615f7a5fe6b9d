"""`ludus bench`: how fast this machine samples, trains and steps, beside what one would pick instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ludus.checks.bench.curves import LAST_STEPS, compare_curves, plot_curves, read_curves, recorded
from ludus.checks.bench.pairs import Measured, Results
from ludus.checks.bench.results import rows_of
from ludus.checks.bench.runner import PEERS_FOLDER, our_runner, peer_names
from ludus.checks.bench.soak import SoakWork
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import (
    LORA_RANK,
    LearnWork,
    MemoryWork,
    OverlapWork,
    PublishWork,
    QuotaWork,
    ReplicasWork,
    RowWork,
    SampleWork,
    StepWork,
    TraceWork,
    TrainKind,
    TrainWork,
    TurnsWork,
    chat_encoder,
    gateway_work,
    long_row,
    sample_batches,
    sums,
    train_rows,
    vocab_size,
)
from ludus.checks.preload import MKL_THREADS, shown_cores
from ludus.cli.console import counting
from ludus.cli.display import finish, parse_numbers, show
from ludus.cli.measuring import (
    compare,
    folder_of,
    headers_of,
    measure_alone,
    record_curves,
    record_quality,
    runner_of_peer,
    show_memory,
    show_profile,
)
from ludus.cli.options import JsonFigures, Model
from ludus.compat.config import load_config
from ludus.errors import UserError
from ludus.models.resolve import resolve_model

_SOAK_S_A_SESSION = 0.06
"""Seconds for each session: 10,000 sessions take ten minutes."""
_SOAK_COUNTS = ("descriptors", "threads")
_SOAK_HEADERS = {
    "sessions": "sessions",
    "requests": "requests",
    "left": "left streams",
    "p50_s": "p50 s",
    "p99_s": "p99 s",
    "mb_per_1000_sessions": "MB a 1,000 sessions",
    "descriptors": "descriptors",
    "threads": "threads",
    "streams": "streams at once",
    "streams_p99_s": "their p99 s",
}
Overrides = Annotated[
    list[str] | None, Argument(metavar="KEY=VALUE", help="Settings of Ludus, such as trainer.row_tokens=512.")
]
Pairs = Annotated[int, Option(min=1, help="How often each side is measured, in turn, in a fresh process.")]
Peers = Annotated[Path, Option(help="Folder with the peers' environments, made by bench/peers.sh.")]
NewTokens = Annotated[int, Option(min=4, help="Tokens sampled for every request, no more and no less.")]
Profile = Annotated[bool, Option("--profile", help="Show where Ludus's time goes, instead of comparing.")]
Tokenizer = Annotated[str, Option("--model", help="Its tokenizer is used: an embedded name, a folder, a hub id.")]

CURVES = Path("bench") / "curves"


def sample(
    overrides: Overrides = None,
    vs: Annotated[str | None, Option(help="vllm, transformers, transformers-batching; or Ludus alone.")] = None,
    requests: Annotated[str, Option(help="Requests at once; several numbers give a row each.")] = "64",
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
    folder = folder_of(model, overrides)
    batches = sample_batches(chat_encoder(folder), parse_numbers(requests))
    work = SampleWork(str(folder), tuple(overrides or ()), batches=batches, new_tokens=new_tokens)
    if profile:
        return show_profile("sample", work, as_json)
    return compare("sample", work, runner_of_peer("sample", vs, peers, work), pairs, as_json)


def train(
    overrides: Overrides = None,
    vs: Annotated[str | None, Option(help="transformers, or full: Ludus without LoRA and checkpointing.")] = None,
    work: Annotated[
        TrainKind, Option(help="dense: 8 x 256 tokens and the optimizer. group: 8 x (200 shared + 32).")
    ] = "dense",
    lora: Annotated[bool, Option("--lora", help="Train adapters of rank 16 alone, on both sides.")] = False,
    checkpointing: Annotated[bool, Option("--checkpointing", help="Recompute layers backward, on both sides.")] = False,
    memory: Annotated[bool, Option("--memory", help="Steps of all sizes, and resident memory over them.")] = False,
    steps: Annotated[int, Option(min=1, help="Steps of a measurement, after two to warm up.")] = 3,
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
    folder, settings = folder_of(model, overrides), tuple(overrides or ())
    if memory:
        return show_memory(MemoryWork(str(folder), settings, vocab_size=vocab_size(folder), steps=steps), as_json)
    rows, num_shared = train_rows(work, vocab_size(folder))
    full = TrainWork(str(folder), settings, kind=work, rows=rows, shared_tokens=num_shared, steps=steps)
    asked = replace(full, lora_rank=LORA_RANK if lora else None, checkpointing=checkpointing)
    if profile:
        return show_profile("train", asked, as_json)
    peer = our_runner("train", full, "full") if vs == "full" else runner_of_peer("train", vs, peers, asked)
    return compare("train", asked, peer, pairs, as_json)


def step(
    overrides: Overrides = None,
    vs: Annotated[str | None, Option(help="trl-autocast (or trl), trl-fp32, trl-bf16. Without it: alone.")] = None,
    steps: Annotated[int, Option(min=2, help="Steps of a measurement; the first is to warm up.")] = 4,
    quality: Annotated[
        bool, Option("--quality", help="Keep and compare rewards, with trl of every precision.")
    ] = False,
    record: Annotated[
        bool, Option("--record", help="With --quality: run the peer too, instead of reading it.")
    ] = False,
    name: Annotated[str, Option(help="With --quality: what our curve is called.")] = "ludus",
    seeds: Annotated[str, Option(help="With --quality: a run for each.")] = "0,1,2",
    folder: Annotated[Path, Option("--curves", help="With --quality: where the rewards are kept.")] = CURVES,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    as_json: JsonFigures = False,
) -> None:
    """How long does a whole step of GRPO take: sampling, training, publishing?

    Sums of two numbers, 8 questions and 8 answers to each, AdamW, no KL.
    Ludus runs its real loop with an agent that talks to the gateway. The
    ratio is the peer's seconds over ours. TRL's default is fp32 weights and
    bf16 autocast; trl-fp32 computes in fp32, trl-bf16 has no fp32 at all.

    [bold]Examples:[/]  ludus bench step --vs trl

      ludus bench step --vs trl --quality --steps 40 --seeds 0,1,2
    """
    model_folder, settings = folder_of(model, overrides), tuple(overrides or ())
    works = []
    for seed in parse_numbers(seeds, least=0) if quality else (0,):
        questions, answers = sums(seed)
        works.append(
            StepWork(str(model_folder), settings, seed=seed, questions=questions, answers=answers, steps=steps)
        )
    if not quality:
        return compare("step", works[0], runner_of_peer("step", vs, peers, works[0]), pairs, as_json)
    names = () if vs is None else peer_names("step", vs)
    names = names if record else recorded(folder, names)
    record_quality(works, folder, name, names if record else (), peers)
    return curves([name, *names], folder, None, as_json)


def learn(
    run: Annotated[Path, Argument(metavar="RUN.YAML", help="A recipe.")],
    overrides: Overrides = None,
    name: Annotated[str | None, Option(help="What the curve is called; the recipe's own name without it.")] = None,
    seeds: Annotated[str, Option(help="A run for each.")] = "0,1,2",
    folder: Annotated[Path, Option("--curves", help="Where the rewards are kept.")] = CURVES,
    as_json: JsonFigures = False,
) -> None:
    """What does a recipe learn, with these settings, over several seeds?

    Each run's rewards are kept as a curve, and its success on held-out rows
    beside them, so that algorithms can be compared with `bench curves`.

    [bold]Example:[/]  ludus bench learn run.yaml algorithm.name=rloo --name rloo
    """
    settings = tuple(overrides or ())
    called = name or load_config(run, settings).name
    works = [(seed, LearnWork(str(run), settings, seed)) for seed in parse_numbers(seeds, least=0)]
    record_curves([(seed, our_runner("learn", work, called)) for seed, work in works], folder)
    return curves([called], folder, None, as_json)


def curves(
    names: Annotated[
        list[str], Argument(metavar="NAME…", help="NAME-seedN.jsonl; the others are held against the first.")
    ],
    folder: Annotated[Path, Option("--curves", help="Where rewards are kept.")] = CURVES,
    plot: Annotated[Path | None, Option(help="Draw them into this PNG.")] = None,
    as_json: JsonFigures = False,
) -> None:
    """Which of the recorded runs has learned more?

    Mean reward of the last ten steps, with its standard error over seeds. No
    worse: the first is not below this one by more than two standard errors.

    [bold]Example:[/]  ludus bench curves ludus trl-bf16 --plot curves.png
    """
    found = {name: read_curves(folder, name) for name in names}
    rows = compare_curves(found)
    if plot is not None:
        plot_curves(plot, found, title="Mean reward")
    headers = {"reward": f"last {LAST_STEPS}", "error": "±", "seeds": "by seed", "no_worse": f"{names[0]} no worse"}
    finish({"bench": "curves", "rows": rows}, {"curve": "curve", **headers}, as_json)


def gateway(
    vs: Annotated[str | None, Option(help="litellm or rllm. Without it: Ludus alone.")] = None,
    requests: Annotated[int, Option(min=1, help="Requests at once.")] = 64,
    seconds: Annotated[float, Option(min=0.1, help="How long so many are asked; one at a time, half of it.")] = 5,
    turns: Annotated[int, Option(min=0, help="Turns of the long session, as in `bench turns`; 0 is none.")] = 200,
    soak: Annotated[bool, Option("--soak", help="What it holds on to after many sessions, instead.")] = False,
    sessions: Annotated[int, Option(min=10, help="Of --soak, in ten minutes or in 60 ms each.")] = 10_000,
    streams: Annotated[int, Option(min=1, help="Of --soak: open at once, in the end.")] = 1000,
    pairs: Pairs = 5,
    model: Tokenizer = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    as_json: JsonFigures = False,
) -> None:
    """What does the gateway add to the engine's time, and how many requests a second does it answer?

    Scripted answers behind the gateway, sessions of chat turns in front of
    it, through its socket, every turn recorded. A peer stands in front of a
    server that answers as fast as it is asked. The ceiling is the same
    client in front of an application that does nothing.

    [bold]Examples:[/]  ludus bench gateway --vs litellm

      ludus bench gateway --soak --json
    """
    folder = resolve_model(model)
    if soak:
        body = measure_alone("soak", "soak", SoakWork(str(folder), sessions, _SOAK_S_A_SESSION * sessions, streams))
        finish({"bench": "gateway soak", **body}, _SOAK_HEADERS, as_json, rows=[_soak_row(body)])
        return
    work = gateway_work(folder, connections=requests, seconds=seconds)
    peer = runner_of_peer("gateway", vs, peers, work)
    counted = None
    if turns:
        counted = measure_alone("turns", "turns", TurnsWork(str(folder), turns // 2, turns, 1))["rows"]
        show(counted, _turns_headers(turns))
    compare("gateway", work, peer, pairs, as_json, turns=counted)


def turns(
    long: Annotated[int, Option("--turns", min=2, help="Turns of the long session; the other has half.")] = 200,
    pairs: Annotated[int, Option(min=1, help="How often both sessions are timed.")] = 5,
    model: Tokenizer = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """Do twice as many turns cost twice as much?

    A session of 200 tool-calling turns against one of 100, through the
    gateway's socket, by counters: characters tokenized, nodes of the graph,
    messages rendered and read, tokens prefilled; and the gateway's time
    without the decoding of JSON. `at most` is the limit of each ratio.

    [bold]Example:[/]  ludus bench turns
    """
    body = measure_alone("turns", "turns", TurnsWork(str(resolve_model(model)), long // 2, long, pairs))
    finish(body, _turns_headers(long), as_json)


def publish(
    overrides: Overrides = None,
    vs: Annotated[str | None, Option(help="reload: the model saved and loaded again; or Ludus alone.")] = None,
    requests: Annotated[int, Option(min=1, help="Requests in flight.")] = 64,
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
    folder = folder_of(model, overrides)
    prompts = sample_batches(chat_encoder(folder), (requests,))[0]
    work = PublishWork(str(folder), tuple(overrides or ()), prompts=prompts, new_tokens=new_tokens)
    if vs not in (None, "reload"):
        raise UserError(f"--vs {vs} cannot be compared in this bench; known: reload")
    compare("publish", work, None if vs is None else our_runner("reload", work, "reload"), pairs, as_json)


def trace(
    overrides: Overrides = None,
    episodes: Annotated[int, Option(min=1, help="Episodes of a measurement, 32 at once.")] = 256,
    new_tokens: NewTokens = 32,
    tracker: Annotated[str, Option(help="For otlp, trackers.otlp.endpoint=… names the collector.")] = "mlflow",
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """What does it cost to send episodes to a tracker?

    Episodes of three turns and three calls of a tool, kept in a run's
    folder: with `trackers: mlflow` on SQLite (or another tracker on this
    machine, --tracker), and without, in turn. The ratio is the tokens a
    second with the tracker over those without.

    [bold]Example:[/]  ludus bench trace --tracker wandb
    """
    questions, _ = sums(0)
    folder = folder_of(model, overrides)
    work = TraceWork(
        str(folder),
        tuple(overrides or ()),
        questions=questions,
        new_tokens=new_tokens,
        episodes=episodes,
        tracker=tracker,
    )
    work.config(f"trackers={tracker}")  # raises if there is no such tracker
    plain = our_runner("trace", replace(work, tracker=None), f"without {tracker}")
    compare("trace", work, plain, pairs, as_json)


def row(
    overrides: Overrides = None,
    tokens: Annotated[int, Option(min=64, help="Of the row that is trained.")] = 4096,
    rows: Annotated[int, Option(min=1, help="Trained alone, and again beside the answers.")] = 2,
    vs: Annotated[str | None, Option(help="turns: the row keeps its turn to its end; or Ludus alone.")] = None,
    pairs: Pairs = 1,
    model: Model = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """What do agents wait for while a long row is trained in the same process?

    One answer is sampled all the time, and twice a second another call is
    aborted: from one token to the next, and from an abort to its answer.
    The tokens a second of training, alone and beside them, say what that
    costs. A ratio above 1 means less waiting, or quicker training.

    [bold]Example:[/]  ludus bench row --vs turns
    """
    if vs not in (None, "turns"):
        raise UserError(f"--vs {vs} cannot be compared in this bench; known: turns")
    folder = folder_of(model, overrides)
    prompt = sample_batches(chat_encoder(folder), (1,))[0][0]
    trained = long_row(tokens, vocab_size(folder))
    work = RowWork(str(folder), tuple(overrides or ()), row=trained, prompt=prompt, rows=rows)
    before = None if vs is None else our_runner("row", replace(work, gives_way=False), "one turn a row")
    compare("row", work, before, pairs, as_json)


def quota(
    overrides: Overrides = None,
    cores: Annotated[int, Option(min=1, help="That the machine shows.")] = 64,
    allowed: Annotated[int, Option("--quota", min=1, help="Of them, that a control group allows.")] = 2,
    threads: Annotated[int | None, Option(min=1, help="OMP_NUM_THREADS of the other side; else the quota.")] = None,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """How fast is a container that may use two of its machine's 64 cores?

    A preloaded library shows so many cores, and a control group that allows
    so few, to all processes of both sides. Ours chooses its threads; the
    other side is told by OMP_NUM_THREADS. Nothing else is limited: where
    there are more cores than the quota, both have them.

    [bold]Examples:[/]  ludus bench quota

      ludus bench quota --threads 64 --pairs 1
    """
    folder, settings = str(folder_of(model, overrides)), tuple(overrides or ())
    batches = sample_batches(chat_encoder(Path(folder)), (16,))
    rows, _ = train_rows("dense", vocab_size(Path(folder)))
    work = QuotaWork(
        SampleWork(folder, settings, batches=batches, new_tokens=32), TrainWork(folder, settings, rows=rows, steps=3)
    )
    with shown_cores(cores, allowed) as variables:
        shown = [f"{name}={value}" for name, value in variables.items()]
        plain, name = our_runner("quota", work), f"OMP_NUM_THREADS={threads or allowed}"
        ours = replace(plain, command=("env", "-u", "OMP_NUM_THREADS", *shown, *plain.command))
        told = [each for each in shown if not each.startswith(MKL_THREADS)]
        peer = replace(plain, name=name, command=("env", "-u", MKL_THREADS, *told, name, *plain.command))
        compare("quota", work, peer, pairs, as_json, ours=ours)


def replicas(
    number: Annotated[int, Option("--replicas", min=2, help="Against one.")] = 2,
    groups: Annotated[int, Option(min=1, help="Groups of four episodes of two turns.")] = 64,
    pairs: Pairs = 3,
    model: Tokenizer = "smollm2-135m",
    as_json: JsonFigures = False,
) -> None:
    """How many more episodes a second do two replicas play than one?

    Engines of scripted answers that sample eight calls at once, a token
    every 50 ms, behind the router and the gateway: what is measured is
    whether anything else stands in the way.

    [bold]Example:[/]  ludus bench replicas
    """
    work = ReplicasWork(str(resolve_model(model)), number, groups=groups)
    one = our_runner("replicas", replace(work, replicas=1), "one replica")
    compare("replicas", work, one, pairs, as_json, replicas=number)


def overlap(
    run: Annotated[Path, Argument(metavar="RUN.YAML", help="A recipe, whose agent asks the model over HTTP.")],
    overrides: Overrides = None,
    ahead: Annotated[str, Option(help="Values of rollout.max_head_offpolicyness; the first is the base.")] = (
        "0,1,2,4,8"
    ),
    tool: Annotated[str, Option(help="Least and most seconds of a tool.")] = "0.2,2",
    tools: Annotated[int, Option(min=1, help="Tools before each call of the model, one after the other.")] = 1,
    seeds: Annotated[str, Option(help="A run of each value for each.")] = "0",
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
    printed: dict[int, list[Results]] = {value: [] for value in values}
    with counting("overlap", len(values) * len(chosen)) as bar:
        for seed in chosen:
            for value in values:
                bar.begin(f"{value} ahead, seed {seed}")
                work = OverlapWork(str(run), tuple(overrides or ()), value, least_s, most_s, tools, seed)
                printed[value].append(our_runner("overlap", work).run())
    base = printed[values[0]]
    rows = [row for results in printed.values() for row in rows_of(BENCHES["overlap"], Measured(results, base))]
    finish({"bench": "overlap", "rows": rows}, headers_of("overlap", "ludus", f"{values[0]} ahead"), as_json)


def _turns_headers(long: int) -> dict[str, str]:
    lengths = {"short": f"{long // 2} turns", "long": f"{long} turns"}
    return {"counter": "counter", **lengths, "ratio": "ratio", "most": "at most"}


def _soak_row(body: Results) -> Results:
    """The counts at the beginning, at the end, and their maximum, as one cell each."""
    counts = {name: " → ".join(map(str, body[name][:2])) + f", {body[name][2]} at most" for name in _SOAK_COUNTS}
    return {**body, **counts}


def _seconds(text: str) -> tuple[float, float]:
    try:
        least_s, most_s = (float(part) for part in text.split(","))
    except ValueError:
        least_s, most_s = 1.0, 0.0
    if not 0 <= least_s <= most_s:
        raise UserError(f"--tool {text} must be two numbers of seconds with a comma between, such as 0.2,2")
    return least_s, most_s
