"""`ludus bench`: how fast this machine samples, trains and steps, beside what one would pick instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ludus.bench.pairs import Figures, run_pairs, run_side
from ludus.bench.results import Measured, Row, result, sample_rows
from ludus.bench.sides import PEERS_FOLDER, our_side, peer_side
from ludus.bench.work import chat_encoder, sample_work
from ludus.errors import UserError
from ludus.model.resolve import resolve_model

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AsJson = Annotated[bool, typer.Option("--json", help="End with one line of JSON: the figures.")]
Model = Annotated[str, typer.Option(help="An embedded name, a local folder, or a hub id.")]
Pairs = Annotated[int, typer.Option(min=1, help="How often each side is measured, in turn, in a fresh process.")]
Peers = Annotated[Path, typer.Option(help="Folder with the peers' environments, made by bench/peers.sh.")]
NewTokens = Annotated[int, typer.Option(min=2, help="Tokens sampled for every request, no more and no less.")]
Profile = Annotated[bool, typer.Option("--profile", help="Show where the time goes instead of comparing.")]


def build_bench_app() -> typer.Typer:
    app = typer.Typer(
        help="Measure this machine: each command compares Ludus with a peer in fresh processes, in turn.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    app.command("sample")(sample)
    return app


def sample(
    vs: Annotated[str | None, typer.Option(help="vllm or transformers; without it Ludus alone is measured.")] = None,
    requests: Annotated[str, typer.Option(help="Requests at once; several numbers give a row each.")] = "64",
    new_tokens: NewTokens = 64,
    pairs: Pairs = 5,
    model: Model = "smollm2-135m",
    peers: Peers = PEERS_FOLDER,
    as_json: AsJson = False,
) -> None:
    """How many tokens a second are sampled?

    Short stories at temperature 1 with logprobs, timed from the first
    submit to the last token. The ceiling is a decoding step with nothing in
    it but the model's linear layers, measured in the same minute.

    [bold]Example:[/]  ludus bench sample --vs vllm --requests 1,64,256
    """
    folder = resolve_model(model)
    work = sample_work(
        str(folder), chat_encoder(folder), requests=_numbers(requests), new_tokens=new_tokens, profile=False
    )
    measured = _measure("sample", work, vs, peers, pairs)
    rows = sample_rows(measured)
    _show(result("sample", rows, measured), "requests", unit="tokens/s", vs=vs, as_json=as_json)


def _measure(bench: str, work: DataclassInstance, vs: str | None, peers: Path, pairs: int) -> Measured:
    """Both sides in turn, or ours alone if there is nobody to compare with."""
    ours = our_side(bench)
    peer = None if vs is None else peer_side(vs, bench, peers)
    with _bar(f"{bench}: ludus", total=pairs * (1 if peer is None else 2)) as advance:
        if peer is None:
            alone = []
            for _ in range(pairs):
                alone.append(run_side(ours, work))
                advance(f"{bench}: ludus")
            return Measured(alone, None)

        def on_done(name: str, _: Figures) -> None:
            advance(f"{bench}: {peer.name if name == ours.name else ours.name}")

        both = run_pairs(ours, peer, work, pairs=pairs, on_done=on_done)
    return Measured([pair.ours for pair in both], [pair.peer for pair in both])


def _show(body: dict[str, Any], key: str, *, unit: str, vs: str | None, as_json: bool) -> None:
    """A row for each of the result's, then the one line of JSON if it is asked for."""
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    columns = _columns(body["rows"], key)
    headers = {"ours": f"ludus {unit}", "peer": f"{vs} {unit}", "ceiling_share": "of the ceiling"}
    for column in columns:
        table.add_column(headers.get(column, column.replace("_", " ")), justify="right")
    for row in body["rows"]:
        table.add_row(*(_cell(column, row[column]) for column in columns))
    console.print(table)
    console.print(body["machine"], style="dim", highlight=False)
    if as_json:
        console.print(json.dumps(body), highlight=False, markup=False, soft_wrap=True)


def _columns(rows: Sequence[Row], key: str) -> list[str]:
    names = [key, *(name for name in rows[0] if name != key)]
    return [name for name in names if any(row[name] is not None for row in rows)]


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if column.startswith("ratio"):
        return f"{value:.2f} x"
    if column == "ceiling_share":
        return f"{value:.0%}"
    return f"{value:,.4g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise UserError(f"--requests {text!r} must be numbers from 1 on with commas between, such as 1,64,256")
    return numbers


@contextmanager
def _bar(label: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr with the time left; what it yields is called with the next label after each measurement."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda description: progress.update(task, advance=1, description=description)
