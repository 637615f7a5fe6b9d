"""`ludus eval`: plays the held-out rows with a model, trained or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument

from ludus.api.trainer import Trainer
from ludus.cli.console import plain_table, say_json, waiting
from ludus.cli.options import JsonAlone, Overrides, file_and_keys
from ludus.compat.config import Config, load_config
from ludus.errors import UserError
from ludus.runs.folder import read_config, trained_model


def evaluate(
    source: Annotated[
        str | None, Argument(metavar="RUN", help="A run.yaml: its model. A run's folder: the one that it trained.")
    ] = None,
    overrides: Overrides = None,
    as_json: JsonAlone = False,
) -> None:
    """Play the held-out rows of a run and show what came of it.

    Nothing is trained or written. The rows are those of valid_dataset.path;
    eval_gconfig sets how answers are sampled and how often a row is played.

    [bold]Examples:[/]  ludus eval run.yaml

      ludus eval runs/guess eval_gconfig.temperature=0

      ludus eval workflow=agent.py:Agent valid_dataset.path=rows.jsonl
    """
    run, keys = file_and_keys(source, overrides or ())
    if run is None and not keys:
        raise UserError("ludus eval needs RUN, a run.yaml or a run's folder, or keys such as workflow=agent.py:Agent")
    config = eval_config(run, keys)
    with waiting(f"playing the held-out rows with {config.model.path}"):
        evaluation = Trainer(config).evaluate()
    if as_json:
        return say_json({"model": config.model.path, **evaluation.metrics})
    table = plain_table()
    table.add_row("[dim]model[/]", config.model.path)
    for name, value in evaluation.metrics.items():
        table.add_row(f"[dim]{name.removeprefix('eval/')}[/]", f"{value:.4g}")
    return Console().print(table)


def eval_config(source: Path | None, overrides: list[str]) -> Config:
    """The configuration of a file, or of a run with its trained model. source: None: from keys only."""
    if source is None or not source.is_dir():
        return load_config(source, overrides)
    try:
        read_config(source)
    except UserError as error:
        raise UserError(
            f"{str(source)!r} cannot say what to play: {error}. Give the file that it was trained with: ludus eval "
            f"run.yaml model.path={source / 'model'}"
        ) from error
    model = trained_model(source)
    trained = [f"model.path={json.dumps(str(model.resolve()))}", "model.lora=null"]
    return load_config(source / "config.yaml", [*trained, *overrides])
