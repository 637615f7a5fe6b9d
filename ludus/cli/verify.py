"""`ludus verify`: the laws of Ludus checked on this machine, against what users run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol

import typer
from rich.console import Console

from ludus.checks.verify.credit import verify_credit
from ludus.checks.verify.dialects import verify_dialects
from ludus.checks.verify.doors import FAMILIES, verify_doors
from ludus.checks.verify.ledger import verify_ledger
from ludus.checks.verify.packing import verify_packing
from ludus.checks.verify.parity import verify_parity
from ludus.checks.verify.ranks import verify_ranks
from ludus.checks.verify.resume import verify_resume
from ludus.cli.console import counting, end, plain_table, say, say_json, waiting
from ludus.cli.log import expect_warnings
from ludus.cli.options import JsonAlone, Model

Seed = Annotated[int, typer.Option(help="Everything random in the check comes from this number.")]


class Dtype(StrEnum):
    """Precisions that a model can be checked in."""

    FP32 = "fp32"
    BF16 = "bf16"


class Verdict(Protocol):
    """What every check returns."""

    @property
    def ok(self) -> bool: ...

    def to_json(self) -> dict[str, object]: ...


def parity(
    dtype: Annotated[Dtype, typer.Option(help="Precision of the weights.")] = Dtype.FP32,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to sample and compare, at least.")] = 1000,
    model: Model = "smollm2-135m",
    seed: Seed = 0,
    as_json: JsonAlone = False,
) -> None:
    """Do sampler and trainer agree on the logprob of every token?

    Several conversations run at once through recorder and engine,
    then the trainer scores exactly the recorded tokens. In fp32 the largest
    difference must be at most 1e-4; in bf16 it is reported.

    [bold]Example:[/]  ludus verify parity --dtype fp32 --tokens 1000
    """
    with counting("sampling and scoring", tokens, quiet=as_json) as bar:
        result = verify_parity(dtype=dtype.value, tokens=tokens, model=model, seed=seed, on_token=bar.reach)
    _finish(result, as_json)


def ledger(
    trees: Annotated[int, typer.Option(min=1, help="Random sessions to check.")] = 10_000,
    seed: Seed = 0,
    as_json: JsonAlone = False,
) -> None:
    """Is every sampled token trained once, or masked for one named reason?

    Random chats with edits, retries, parallel sub-agents and dropped
    history are run through the recorder with a scripted engine, exported
    in both styles, and every token that the engine sampled is counted.

    [bold]Example:[/]  ludus verify ledger --trees 10000 --seed 7
    """
    expect_warnings()
    with counting("counting", trees, quiet=as_json) as bar:
        result = verify_ledger(trees=trees, seed=seed, on_tree=bar.reach)
    _finish(result, as_json)


def packing(model: Model = "smollm2-135m", seed: Seed = 0, as_json: JsonAlone = False) -> None:
    """Is the gradient of packed rows that of one episode at a time?

    Recorded conversations with shared prefixes are trained packed, and one
    turn at a time, in fp32. The gradients may differ by 1e-5 of their size.

    [bold]Example:[/]  ludus verify packing --seed 3
    """
    with waiting("computing both gradients", quiet=as_json):
        result = verify_packing(model=model, seed=seed)
    _finish(result, as_json)


def resume(
    kill_at_step: Annotated[int, typer.Option(min=1, help="The run is killed in the middle of this step.")] = 3,
    steps: Annotated[int, typer.Option(min=2, help="Steps of the whole run.")] = 5,
    model: Model = "smollm2-135m",
    seed: Seed = 0,
    as_json: JsonAlone = False,
) -> None:
    """Does a run that was killed go on as if nothing had happened?

    `ludus train` is killed with SIGKILL in the middle of a step, resumed,
    and compared with a run left alone: no recorded token may be lost, and
    the final weights must be equal to the last bit.

    [bold]Example:[/]  ludus verify resume --kill-at-step 3
    """
    with waiting("training three times: alone, until the kill, and resumed", quiet=as_json):
        result = verify_resume(kill_at_step=kill_at_step, steps=steps, model=model, seed=seed)
    _finish(result, as_json)


def ranks(
    ranks: Annotated[list[int] | None, typer.Option(help="Compared with one rank; may be given again.")] = None,
    steps: Annotated[int, typer.Option(min=3, help="Of the curves.")] = 6,
    model: Model = "smollm2-135m",
    seed: Seed = 0,
    as_json: JsonAlone = False,
) -> None:
    """Is a trainer on several ranks the trainer on one?

    Recorded conversations, packed into rows of unequal length, are trained
    in fp32 on one process and on several: the gradients may differ by 1e-5
    of their size, the curves by 1e-4 of the largest loss. A checkpoint of
    several ranks must come through one with every bit, and training on
    several, on one and on several again may differ by 1e-6.

    [bold]Example:[/]  ludus verify ranks --ranks 2 --ranks 4
    """
    with waiting("training on one rank, and on several", quiet=as_json):
        result = verify_ranks(model=model, seed=seed, ranks=ranks or (2, 4), steps=steps)
    _finish(result, as_json)


def credit(model: Model = "smollm2-135m", seed: Seed = 0, as_json: JsonAlone = False) -> None:
    """Do turns get the returns that a person computes by hand?

    Episodes that branch, whose reasoning is stripped, and that call
    sub-agents are run through the recorder. The answers are written down:
    of the model only its tokenizer is used, and --seed changes nothing.

    [bold]Example:[/]  ludus verify credit
    """
    result = verify_credit(model=model)
    if not as_json:
        table = plain_table("episode", "turn", "follows", "fork", "reward", "return", "by hand")
        for row in result.rows:
            cells = (row.episode, row.turn, row.follows, row.fork, row.reward, row.got, row.expected)
            table.add_row(*map(_cell, cells))
        Console().print(table)
    _finish(result, as_json, extra={"seed": seed})


def dialects(seed: Seed = 0, as_json: JsonAlone = False) -> None:
    """Does an agent get the same tokens in every wire protocol?

    One agent with two tools is run through the official SDKs of OpenAI
    (Chat Completions, Responses) and Anthropic (Messages), streamed and not.
    What is recorded of each must be the same: token ids, masks, logprobs.

    [bold]Example:[/]  ludus verify dialects --seed 7 --json
    """
    with waiting("running the agent in every protocol", quiet=as_json):
        result = verify_dialects(seed=seed)
    _finish(result, as_json)


def doors(seed: Seed = 0, as_json: JsonAlone = False) -> None:
    """Does a dialogue train the same, whichever family of agents has it?

    The same four dialogues are run by a workflow, an agent loop, a
    trajectory and a queue agent. Tokens, masks, logprobs and advantages
    that would reach the trainer must be equal to the last bit.

    [bold]Example:[/]  ludus verify doors --seed 3 --json
    """
    with counting("running", len(FAMILIES), quiet=as_json) as bar:
        result = verify_doors(seed=seed, on_family=bar.reach)
    _finish(result, as_json)


def _finish(result: Verdict, as_json: bool, extra: dict[str, object] | None = None) -> None:
    body = result.to_json() | (extra or {})
    if as_json:
        say_json(body)
    else:
        table = plain_table()
        for name, value in body.items():
            if name != "ok":
                table.add_row(f"[dim]{name}[/]", _cell(value))
        Console().print(table)
        say("[bold green]ok[/]" if result.ok else "[bold red]FAILED[/]")
    end(result.ok)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
    if isinstance(value, bool) or value is None:
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
