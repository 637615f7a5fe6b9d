"""Shows measurements as a table or a line of JSON, and parses lists of numbers in options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ludus.checks.bench.machine import machine
from ludus.cli.console import plain_table, say_json
from ludus.errors import UserError

Row = Mapping[str, Any]
# Width for a file or a pipe: enough for the widest table.
_WIDE = 160


def show(rows: Sequence[Row], headers: Mapping[str, str], note: str = "") -> None:
    """Print a table with the columns in `headers`, without empty ones, and a note below it."""
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDE)
    table = plain_table()
    table.show_header = True
    names = [name for name in headers if any(row.get(name) is not None for row in rows)]
    for name in names:
        cells = [_cell(name, row) for row in rows]
        table.add_column(headers[name], justify="left" if name == names[0] else "right", min_width=max(map(len, cells)))
    for row in rows:
        table.add_row(*(_cell(name, row) for name in names))
    console.print(table)
    console.print(note, style="dim", highlight=False)


def _cell(name: str, row: Row) -> str:
    """A value formatted for people: shares in percent, ratios with their range, everything else to three digits."""
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


def finish(
    body: Mapping[str, Any], headers: Mapping[str, str], as_json: bool, *, rows: Sequence[Row] | None = None
) -> None:
    """Show the rows of a bench and the machine that they were measured on, and the whole as JSON if asked.

    rows: None: those of `body`.
    """
    body = {**body, "machine": ", ".join([machine(), *([body["card"]] if "card" in body else [])])}
    show(body["rows"] if rows is None else rows, headers, body["machine"])
    if as_json:
        say_json(body)


def parse_numbers(text: str, *, least: int = 1) -> tuple[int, ...]:
    """Comma-separated numbers. Raises UserError for anything else, and for a number below `least`."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        raise UserError(f"{text!r} must be numbers from {least} on with commas between, such as 1,64,256")
    return numbers
