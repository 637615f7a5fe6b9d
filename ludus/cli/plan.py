"""`ludus plan`: how much memory of its cards a run would use, and settings that make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from ludus.api.cards.choose import Cards, CardUse, Plan
from ludus.api.cards.memory import GB
from ludus.api.cards.start import counted_cards, plan_for
from ludus.cli.console import plain_table, say, say_json
from ludus.cli.options import JsonAlone, Overrides, file_and_keys
from ludus.compat.config import load_config


def plan(
    config: Annotated[
        str | None, Argument(metavar="RUN.YAML", help="The run's configuration; without it all keys are given.")
    ] = None,
    overrides: Overrides = None,
    cards: Annotated[
        str | None, Option(metavar="COUNTxGB", help="Such as 1x24 or 8x80. Without it: those of this machine.")
    ] = None,
    as_json: JsonAlone = False,
) -> None:
    """What would a run take of its cards, and does it fit?

    Nothing is loaded: the model's config.json, the run's keys and the cards
    say how many pages of keys and values there would be, how long rows may
    get, what is kept for the backward pass, and who is placed where. On a
    card every start does the same with the keys that were not given.

    [bold]Example:[/]  ludus plan run.yaml --cards 1x24
    [bold]Example:[/]  ludus plan run.yaml model.lora.rank=16 --cards 8x80 --json
    """
    path, keys = file_and_keys(config, overrides or ())
    settings, counted = load_config(path, keys), counted_cards() if cards is None else Cards.read(cards)
    made, chosen = plan_for(settings, counted)
    if as_json:
        return say_json(_body(made, counted, chosen))
    Console(highlight=False).print(_table(made))
    say(f"[dim]cards   [/] {made.num_cards} of {counted} in use")
    say(f"[dim]rows    [/] {made.row_tokens:,} tokens; a longer path fits up to {made.longest_tokens:,}")
    if made.host_bytes:
        say(f"[dim]memory  [/] {_gb(made.host_bytes)} GB of the machine's, besides")
    say(f"[dim]pages   [/] {made.num_pages:,} of each engine, for {made.kv_tokens:,} tokens")
    for key, value in chosen.items():
        say(f"[dim]set     [/] [bold]{escape(key)}={_written(value)}[/]")
    return None


def _table(made: Plan) -> Table:
    """Memory by part, a column for each kind of card."""
    heads = [f"{_counted(each)}: {each.what}" for each in made.uses]
    table = plain_table("GB", *heads, right=heads)
    for part in dict.fromkeys(name for each in made.uses for name in each.parts):
        table.add_row(part, *(_gb(each.parts.get(part)) for each in made.uses))
    table.add_row("", *("" for _ in made.uses))
    table.add_row("together", *(f"{each.num_bytes / GB:.2f} of {made.card_bytes / GB:.2f}" for each in made.uses))
    return table


def _counted(use: CardUse) -> str:
    return "in its turn" if use.is_in_turn else f"{use.count} {'card' if use.count == 1 else 'cards'}"


def _gb(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / GB:.2f}"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _body(made: Plan, counted: Cards, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {**asdict(made), "cards": asdict(counted), "num_cards": made.num_cards, "settings": dict(chosen)}
