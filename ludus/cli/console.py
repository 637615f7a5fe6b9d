"""What commands show: lines and tables, bars while something takes long, one line of JSON.

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
    """One line on stdout, however long; nothing in it is coloured but by its own marks."""
    Console().print(text, style=style, highlight=False, soft_wrap=True)


def show_admin_key(key: str, given: str | None) -> None:
    """Once, if it was made here. given: the one that the user chose."""
    if given is None:
        say(f"admin key [bold]{key}[/], shown this once")


def show_damages(found: Sequence[str]) -> None:
    """What of a run is not as it was written, on stderr: what follows is of what can be read."""
    for sentence in found:
        Console(stderr=True).print(f"[yellow]damaged:[/] {escape(sentence)}", highlight=False, soft_wrap=True)


def say_json(body: Mapping[str, Any]) -> None:
    """One line that programs read."""
    Console().print(json.dumps(body), highlight=False, markup=False, soft_wrap=True)


def plain_table(*headers: str, right: Sequence[str] = (), **options: Any) -> Table:
    """A table without lines; the columns in `right` are of numbers. Without headers none are shown."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(headers), **options)
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left")
    return table


def end(ok: bool) -> None:
    """Leave with exit code 1 if a check failed."""
    if not ok:
        raise typer.Exit(EXIT_FAILED)


class Bar:
    """How far something is, of so many."""

    def __init__(self, progress: Progress, task: TaskID, label: str) -> None:
        self._progress, self._task, self._label = progress, task, label
        self._begun = False

    def advance(self, *_: object) -> None:
        """One more is done; arguments of a callback are not looked at."""
        self._progress.advance(self._task)

    def reach(self, done: int, total: int | None = None) -> None:
        """So many are done, the surplus not counted. total: None: as many as before."""
        total = total or int(self._progress.tasks[0].total or done)
        self._progress.update(self._task, completed=min(done, total), total=total)

    def begin(self, name: str) -> None:
        """What `name` names begins, so what was begun before it is done."""
        self._progress.update(self._task, advance=int(self._begun), description=f"{self._label}: {name}")
        self._begun = True


@contextmanager
def counting(label: str, total: int | None, *, quiet: bool = False, console: Console | None = None) -> Iterator[Bar]:
    """A bar with the time left, on stderr unless a console is named, and only where somebody watches."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = quiet or not console.is_terminal
    # Whatever is printed to stdout meanwhile stays there, also where the bar is on stderr.
    with Progress(*columns, console=console, transient=True, disable=silent, redirect_stdout=False) as progress:
        yield Bar(progress, progress.add_task(label, total=total), label)


def waiting(label: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """A spinner on stderr, for what cannot be counted."""
    return nullcontext() if quiet else Console(stderr=True).status(label)
