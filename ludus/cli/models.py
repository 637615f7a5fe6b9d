"""`ludus models`: the models that come with Ludus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ludus.errors import UserError
from ludus.models.fetch import fetch_model
from ludus.models.resolve import EMBEDDED, resolve_model

Reference = Annotated[str, typer.Argument(metavar="MODEL", help="An embedded name, a local folder, or a hub id.")]


def build_models_app() -> typer.Typer:
    app = typer.Typer(
        help="List, fetch and find models: embedded ones, local folders and hub ids work alike.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    app.command("list")(list_models)
    app.command("get")(get_model)
    app.command("path")(print_path)
    app.command("random")(make_random)
    return app


def list_models() -> None:
    """Show the models that come with Ludus, and which are here already.

    [bold]Example:[/]  ludus models list
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("model", "on this machine", "licence", "about"):
        table.add_column(column)
    for name, model in sorted(EMBEDDED.items()):
        table.add_row(f"[bold]{name}[/]", _place_or_hint(name), model.license, model.about)
    Console().print(table)


def get_model(model: Reference) -> None:
    """Bring a model to this machine, so that training needs no network.

    [bold]Example:[/]  ludus models get smollm2-135m
    """
    console = Console()
    if model in EMBEDDED:
        with Console(stderr=True).status(f"fetching {model} and converting its weights"):
            folder = fetch_model(model)
    else:
        folder = resolve_model(model)
    console.print(str(folder), highlight=False, soft_wrap=True)


def print_path(model: Reference) -> None:
    """Print the folder of a model, for other programs.

    [bold]Example:[/]  python play.py $(ludus models path smollm2-135m)
    """
    Console().print(str(resolve_model(model)), highlight=False, soft_wrap=True)


def make_random(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="A shape, as a model's config.json tells it.")],
    folder: Annotated[Path, typer.Argument(help="Where to write the model; not there yet.")],
    tokenizer: Annotated[
        str, typer.Option(metavar="MODEL", help="Whose tokenizer and chat template it gets.")
    ] = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
) -> None:
    """Write a model with random weights, to measure the speed of a shape without downloading one.

    [bold]Example:[/]  ludus models random bench/shapes/qwen3-0.6b.json models/qwen3-0.6b
    """
    try:
        from ludus.models.untrained import make_untrained
    except ModuleNotFoundError as error:
        raise UserError(f"making a model needs {error.name!r}; run `pip install 'ludus[train]'`") from error
    with Console(stderr=True).status(f"making random weights of the shape in {config}"):
        make_untrained(config, folder, tokenizer=tokenizer, seed=seed)
    Console().print(str(folder), highlight=False, soft_wrap=True)


def _place_or_hint(name: str) -> str:
    try:
        return f"[green]yes[/], {resolve_model(name)}"
    except UserError:
        return f"no: [bold]ludus models get {name}[/]"
