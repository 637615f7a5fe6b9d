"""`ludus bench gpu`: the first minutes on a card."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from ludus.checks.bench.gpu import TESTS, Part, Place, Report, read_parts, run_parts
from ludus.checks.bench.machine import machine, versions
from ludus.checks.bench.runner import CHECKOUT, PEERS_FOLDER
from ludus.cli.bench import Peers
from ludus.cli.console import end, plain_table, say, say_json
from ludus.cli.display import show
from ludus.cli.measuring import headers_of
from ludus.cli.options import JsonFigures
from ludus.errors import UserError

_STYLES = {"passed": "green", "failed": "red", "out of time": "yellow", "not run": "yellow"}


def gpu(
    names: Annotated[list[str] | None, Argument(metavar="PART…", help="These alone; without any, all.")] = None,
    minutes: Annotated[float, Option(min=0.1, help="Of all parts together.")] = 25,
    folder: Annotated[Path, Option(help="Of the results, and of models with random weights.")] = Path("build/gpu"),
    peers: Peers = PEERS_FOLDER,
    listed: Annotated[bool, Option("--list", help="Only show the parts and their limits; needs no card.")] = False,
    as_json: JsonFigures = False,
) -> None:
    """Does this card compute what the processor does, and how fast is it?

    First the tests of `make test-gpu`, part by part; then SmolLM2 plays the
    guessing game; then sampling, training and whole steps at the shapes of
    0.6B and 4B weights, sampling and training beside transformers. Each part
    has a limit, and the file of results is written after each.

    [bold]Examples:[/]  ludus bench gpu --minutes 25

      ludus bench gpu sample-0.6b train-0.6b --minutes 8
    """
    parts = read_parts(names or ())
    if listed:
        return _list(parts)
    if not (CHECKOUT / TESTS).is_file():
        raise UserError(f"the tests are not in {CHECKOUT}: run from a checkout of Ludus, `pip install -e .`")
    about = {"machine": machine(), "card": _card(), "minutes": minutes, "versions": versions()}
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder / f"results-{time.strftime('%Y%m%d-%H%M%S')}.json", about)
    place = Place(folder.absolute(), peers=peers.absolute())
    passed = run_parts(
        parts, place, report, seconds=60 * minutes, on_begin=lambda name: say(f"[dim]{name} …[/]"), on_end=_show
    )
    say(f"{report.file}")
    if as_json:
        say_json(report.body())
    return end(passed)


def _card() -> str:
    """The card's name. Raises UserError if there is none."""
    try:
        from torch import cuda
    except ModuleNotFoundError as error:
        raise UserError(f"measuring a card needs {error.name!r}: pip install 'ludus[train]'") from error
    if not cuda.is_available():
        raise UserError("no card: torch finds none here; `ludus bench gpu --list` shows what would be done with one")
    return cuda.get_device_name()


def _list(parts: Sequence[Part]) -> None:
    table = plain_table("part", "s at most", "what", right=("s at most",))
    for part in parts:
        peer = f", beside {part.peer}" if part.peer else ""
        what = ", ".join(part.tests) or (f"bench {part.bench}{peer}" if part.bench else "random weights of this shape")
        table.add_row(f"[bold]{part.name}[/]", f"{part.limit_s:g}", what)
    Console().print(table)


def _show(part: Part, found: Mapping[str, Any]) -> None:
    """How a part ended, what it measured, and what it said if it failed."""
    tests = found.get("tests", {})
    words = [f"{found['seconds']:.0f} s"] if "seconds" in found else []
    words += [f"{sum(how == 'PASSED' for how in tests.values())} tests passed"] if tests else []
    words += [f"not passed: {name}" for name, how in tests.items() if how != "PASSED"]
    words += [f"{found['success_after']:.1%} of games won"] if found.get("success_after") is not None else []
    ended = found["ended"]
    say(f"[{_STYLES[ended]}]{ended}[/] [bold]{part.name}[/]  {escape(', '.join(words))}")
    if "rows" in found:
        show(found["rows"], headers_of(part.bench, "ludus", part.peer))
    if "said" in found:
        say(escape(found["said"]), style="dim")
