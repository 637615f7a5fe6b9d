"""`ludus models`: the models that come with Ludus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from ludus.cli.console import plain_table, say, waiting
from ludus.cli.options import ModelArgument
from ludus.errors import UserError
from ludus.models.fetch import fetch_model
from ludus.models.resolve import EMBEDDED, resolve_model


def list_models() -> None:
    """Show the models that come with Ludus, and which are here already.

    [bold]Example:[/]  ludus models list
    """
    table = plain_table("model", "on this machine", "licence", "about")
    for name, model in sorted(EMBEDDED.items()):
        table.add_row(f"[bold]{name}[/]", _place_or_hint(name), model.license, model.about)
    Console().print(table)


def get_model(model: ModelArgument) -> None:
    """Bring a model to this machine, so that training needs no network.

    [bold]Example:[/]  ludus models get smollm2-135m
    """
    if model in EMBEDDED:
        with waiting(f"fetching {model} and converting its weights"):
            folder = fetch_model(model)
    else:
        folder = resolve_model(model)
    say(str(folder))


def print_path(model: ModelArgument) -> None:
    """Print the folder of a model, for other programs.

    [bold]Example:[/]  python play.py $(ludus models path smollm2-135m)
    """
    say(str(resolve_model(model)))


def make_random(
    config: Annotated[Path, Argument(metavar="CONFIG.json", help="A shape, as in a model's config.json.")],
    folder: Annotated[Path, Argument(help="Where to write the model; not there yet.")],
    tokenizer: Annotated[str, Option(metavar="MODEL", help="Whose tokenizer it gets.")] = "smollm2-135m",
    seed: Annotated[int, Option(help="Of the weights.")] = 0,
) -> None:
    """Write a model with random weights, to measure the speed of a shape without downloading one.

    [bold]Example:[/]  ludus models random bench/shapes/qwen3-0.6b.json models/qwen3-0.6b
    """
    try:
        from ludus.models.untrained import make_untrained
    except ModuleNotFoundError as error:
        raise UserError(f"making a model needs {error.name!r}; run `pip install 'ludus[train]'`") from error
    with waiting(f"making random weights of the shape in {config}"):
        make_untrained(config, folder, tokenizer=tokenizer, seed=seed)
    say(str(folder))


def _place_or_hint(name: str) -> str:
    try:
        return f"[green]yes[/], {resolve_model(name)}"
    except UserError:
        return f"no: [bold]ludus models get {name}[/]"
