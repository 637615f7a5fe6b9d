"""`ludus import`: converts files of other frameworks, with a report of what could not be converted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from ludus.cli.console import plain_table, say
from ludus.compat.areal.importer import import_areal
from ludus.compat.art.importer import find_models, import_model, write_model
from ludus.compat.importing.files import read_rows
from ludus.compat.importing.interpolate import read_yaml
from ludus.compat.importing.report import FATES, Entry, Fate, ImportReport, by_note, lines, write_text
from ludus.compat.verl.importer import import_verl
from ludus.errors import UserError

_SHOWN: dict[Fate, tuple[str, str, str]] = {
    "left out": ("red", "acted there, and nothing does here: look at these", ""),
    "changed": ("yellow", "taken, with a difference", ""),
    "taken": ("green", "taken as it is", "under the same name"),
    "not needed": ("dim", "nothing is lost", "so it is here anyway"),
}
"""For each fate its colour, its meaning, and the note for names that have none."""
MOST_NAMES = 8
"""Limit on the names shown for the same note; the report has all of them."""

AsJson = Annotated[bool, Option("--json", help="Add the report as one JSON object.")]


def import_art_folder(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="ART's folder, a project's or a model's.")],
    out: Annotated[Path, Option(help="Where projects lie: the `base_path` of models.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Trajectories, history and state of ART's models.

    Each model's log files are written where a model of the same name and project
    has its own. ART keeps no tokens: its trajectories can be judged and
    imitated, not reinforced.

    [bold]Example:[/]  ludus import art .art/my-project
    """
    models = [import_model(path) for path in find_models(folder)]
    written = [path for model in models for path in write_model(model, out)]
    prefixes = {model.name: f"{model.name}: " if len(models) > 1 else "" for model in models}
    entries = [replace(one, name=prefixes[model.name] + one.name) for model in models for one in model.entries]
    _finish(folder, entries, written, out / f"{models[0].project}.import.json", as_json)
    for model in models:
        counts = f"{model.num_groups:,} groups, {model.num_trajectories:,} trajectories"
        say(f"{out / model.project / 'models' / model.name}: {counts}")


def import_verl_rows(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="verl's .parquet files, or JSON of them.")],
    out: Annotated[Path, Option(help="File to write.")] = Path("rows.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Rows of verl, as rows that the same agent loops play here.

    [bold]Example:[/]  ludus import verl ~/data/gsm8k/train.parquet --out train.jsonl
    """
    imported = import_verl([row for path in files for row in read_rows(path)])
    if not imported.rows:
        raise UserError(f"{', '.join(map(str, files))}: there is no row with a usable prompt")
    write_text(out, lines(imported.rows))
    _finish(", ".join(map(str, files)), imported.entries, [out], out.with_suffix(".import.json"), as_json)
    say(f"{out}: {len(imported.rows):,} rows")


def import_areal_yaml(
    config: Annotated[Path, Argument(metavar="CONFIG", help="AReaL's YAML.")],
    overrides: Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]...", help="As AReaL takes them.")] = None,
    out: Annotated[Path, Option(help="File to write.")] = Path("run.yaml"),
    as_json: AsJson = False,
) -> None:
    """A configuration of AReaL, as one that `ludus train` loads.

    [bold]Example:[/]  ludus import areal config.yaml actor.optimizer.lr=1e-5 --out run.yaml
    """
    imported = import_areal(read_yaml(config, overrides or ()))
    write_text(
        out, f"# Imported from {config.name}; {out.stem}.import.json says what was not taken.\n" + imported.to_yaml()
    )
    _finish(config, imported.entries, [out], out.with_suffix(".import.json"), as_json)
    say(f"{out}: ludus train {out}")


def _finish(
    source: object, entries: list[Entry] | tuple[Entry, ...], written: list[Path], at: Path, as_json: bool
) -> None:
    """Write the report, and show it."""
    report = ImportReport(str(source), tuple(entries), tuple(map(str, written)))
    write_text(at, report.to_json(), replace=True)
    Console(highlight=False).print(_table(report))
    if as_json:
        typer.echo(report.to_json(), nl=False)


def _table(report: ImportReport) -> Table:
    table = plain_table(padding=(0, 2, 0, 0))
    for fate in FATES:
        found = report.of(fate)
        if not found:
            continue
        colour, meaning, without_note = _SHOWN[fate]
        table.add_row(f"[{colour}]{len(found)} {fate}[/]", f"[{colour}]{meaning}[/]")
        for note, names in by_note(found).items():
            more = f" and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else ""
            table.add_row(f"  {escape(', '.join(names[:MOST_NAMES]))}{more}", escape(note or without_note))
    return table
