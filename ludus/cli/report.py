"""`ludus report`: a run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from ludus.cli.console import say, show_damages
from ludus.runs.decoder import decoder_of
from ludus.runs.report import write_report
from ludus.runs.store import RunStore


def report(run: Annotated[Path, Argument(metavar="RUN", help="The run's folder, such as runs/guess.")]) -> None:
    """Write one HTML page about a run, and a PNG of its reward curve.

    It is the page of ludus watch with its data inside: curves, health,
    where every sampled token went, the newest episodes, and some of them
    turn by turn with each token and the numbers that its loss used. It
    needs no other file, and may be written while the run still trains.

    [bold]Example:[/]  ludus report runs/guess
    """
    with RunStore.open(run) as store:
        show_damages(store.damages())
        decode = decoder_of(store)
        if decode is None:
            say("[dim]The run's model is not on this machine: tokens are shown as ids.[/]")
        files = write_report(store, decode=decode)
    for path in (files.html, files.png):
        if path is not None:
            say(str(path))
