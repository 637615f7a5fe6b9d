"""`ludus export`: writes a run's recorded interactions to a file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from ludus.cli.console import say, show_damages
from ludus.errors import UserError
from ludus.runs.export import WRITERS, Format, write_failures, write_jsonl
from ludus.runs.failures import failure_lines
from ludus.runs.interactions import Style, interactions
from ludus.runs.store import RunStore
from ludus.runs.watch.branches import demonstrations


def export(
    run: Annotated[Path, Argument(metavar="RUN", help="The run's folder, such as runs/gateway.")],
    format_: Annotated[Format, Option("--format", help="JSON lines, or Parquet.")] = "jsonl",
    style: Annotated[Style, Option(help="A row for each turn, or one for each conversation.")] = "individual",
    out: Annotated[Path | None, Option(help="File to write; RUN/export.FORMAT by default.")] = None,
    chosen: Annotated[
        bool, Option("--demonstrations", help="The answers chosen on the run's page, for supervised training.")
    ] = False,
) -> None:
    """Write every recorded interaction of a run: messages, token ids, masks,
    logprobs, rewards; and, beside it, how many episodes ended badly and why.

    [bold]Examples:[/]  ludus export runs/gateway --format parquet

      ludus export runs/guess --demonstrations
    """
    if chosen:
        return _export_demonstrations(run, run / "demonstrations.jsonl" if out is None else out)
    path = run / f"export.{format_}" if out is None else out
    with RunStore.open(run) as store:
        show_damages(store.damages())
        rows = (row for episode in store.episodes() for row in interactions(episode, style))
        count = WRITERS[format_](rows, path)
        failures = store.failures()
        beside = write_failures(failures, path)
        lines = failure_lines(failures, num_episodes=store.num_episodes)
    say(f"{path}: {count:,} rows")
    if beside is not None:
        say(escape("\n".join([*lines, f"{beside}: each with the first traceback"])))
    return None


def _export_demonstrations(run: Path, path: Path) -> None:
    RunStore.check_there(run)
    rows = list(demonstrations(run))
    if not rows:
        raise UserError(
            f"no answer was chosen as a demonstration of {str(run)!r}: choose some on a branch's page (`ludus watch "
            f"{run}`)"
        )
    write_jsonl(rows, path)
    say(f"{path}: {len(rows):,} rows")
