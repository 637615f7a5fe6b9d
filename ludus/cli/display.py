"""Measurements as one reads them: a table, a line of JSON; and the lists of numbers that ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ludus.cli.console import plain_table, say_json
from ludus.errors import UserError

Row = Mapping[str, Any]
# A file or a pipe has no width; the widest table is shown whole there.
_WIDE = 160


def result_console() -> Console:
    """The console that results are printed on."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def show(console: Console, rows: Sequence[Row], headers: Mapping[str, str]) -> None:
    """A table of the columns that `headers` name, but of those alone that hold anything."""
    table = plain_table()
    table.show_header = True
    names = [name for name in headers if any(row.get(name) is not None for row in rows)]
    for name in names:
        cells = [cell(name, row) for row in rows]
        table.add_column(headers[name], justify="left" if name == names[0] else "right", min_width=max(map(len, cells)))
    for row in rows:
        table.add_row(*(cell(name, row) for name in names))
    console.print(table)


def columns(*names: str, **headers: str) -> dict[str, str]:
    """Columns of a table in their order: those whose header is their name, then those with another."""
    return {**{name: name for name in names}, **headers}


def rates(unit: str, vs: str | None) -> dict[str, str]:
    """Columns of a comparison: figures of both sides, their ratio, and our share of what is possible."""
    sides = {side: f"{name} {unit}".rstrip() for side, name in (("ours", "ludus"), ("peer", vs))}
    return {**sides, "ratio": "ratio (range)", "ceiling_share": "of ceiling"}


def cell(name: str, row: Row) -> str:
    """A value as a person reads it: shares in percent, ratios with their range, everything else to three digits."""
    value = row.get(name)
    if value is None:
        return "–"
    if name == "ratio":
        spread = f" ({row['ratio_min']:.2f}–{row['ratio_max']:.2f})" if "ratio_min" in row else ""
        return f"{value:.2f} x{spread}"
    if name.endswith("share"):
        return f"{value:.1%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def finish(body: Mapping[str, Any], headers: Mapping[str, str], as_json: bool) -> None:
    """Show the rows of a bench and the machine that they were measured on, and the whole as JSON if asked."""
    console = result_console()
    show(console, body["rows"], headers)
    console.print(body["machine"], style="dim", highlight=False)
    if as_json:
        say_json(body)


def parse_numbers(text: str, *, least: int = 1) -> tuple[int, ...]:
    """Numbers with commas between. Raises UserError for anything else, and for one below `least`."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        raise UserError(f"{text!r} must be numbers from {least} on with commas between, such as 1,64,256")
    return numbers
