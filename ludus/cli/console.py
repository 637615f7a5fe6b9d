"""Output of commands: lines, tables, progress bars, one line of JSON.

Knows: terminals.  Knows not: what any command does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

EXIT_FAILED = 1


def say(text: str, *, style: str | None = None) -> None:
    """Print one line on stdout without wrapping; only its own markup is coloured."""
    Console().print(text, style=style, highlight=False, soft_wrap=True)


def show_admin_key(key: str, given: str | None) -> None:
    """Show a generated admin key, once. given: the key that the user chose. None: it was generated."""
    if given is None:
        say(f"admin key [bold]{key}[/], shown this once")


def show_damages(found: Sequence[str]) -> None:
    """Print the damages of a run on stderr; the output that follows covers only what can be read."""
    for sentence in found:
        Console(stderr=True).print(f"[yellow]damaged:[/] {escape(sentence)}", highlight=False, soft_wrap=True)


def say_json(body: Mapping[str, Any]) -> None:
    """Print one line of JSON, for programs."""
    Console().print(json.dumps(body), highlight=False, markup=False, soft_wrap=True)


def plain_table(*headers: str, right: Sequence[str] = (), **options: Any) -> Table:
    """A table without rules; the columns in `right` are right-aligned. Without headers no header row is shown."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(headers), **options)
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left")
    return table


def end(ok: bool) -> None:
    """Exit with code 1 if a check failed."""
    if not ok:
        raise typer.Exit(EXIT_FAILED)


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, task: TaskID, label: str) -> None:
        self._progress, self._task, self._label = progress, task, label
        self._begun = False

    def advance(self, *_: object) -> None:
        """One more is done. Ignores its arguments, so that it can be used as a callback."""
        self._progress.advance(self._task)

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the number that is done, at most the total. total: a new total. None: unchanged."""
        total = total or int(self._progress.tasks[0].total or done)
        self._progress.update(self._task, completed=min(done, total), total=total)

    def begin(self, name: str) -> None:
        """Begin the item `name`; the one before it is done."""
        self._progress.update(self._task, advance=int(self._begun), description=f"{self._label}: {name}")
        self._begun = True


@contextmanager
def counting(label: str, total: int | None, *, quiet: bool = False, console: Console | None = None) -> Iterator[Bar]:
    """A progress bar with the remaining time, on stderr unless a console is given, and only in a terminal."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = quiet or not console.is_terminal
    # Output to stdout is not redirected, even if the bar is on stderr.
    with Progress(*columns, console=console, transient=True, disable=silent, redirect_stdout=False) as progress:
        yield Bar(progress, progress.add_task(label, total=total), label)


def waiting(label: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """A spinner on stderr, for work without a known total."""
    return nullcontext() if quiet else Console(stderr=True).status(label)
