"""`ludus train`: a run from its configuration, watched live."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ludus.api.experiment import load_config
from ludus.api.trainer import Trainer
from ludus.cli.live import duration, watch
from ludus.cli.names import free_name
from ludus.cli.report import decoder_of
from ludus.cli.submit import submit_training, wants_job
from ludus.config import Config
from ludus.errors import UserError
from ludus.loop.observer import RunSummary
from ludus.loop.train import INTERRUPT
from ludus.runs.report import write_report
from ludus.runs.store import RunStore

# Keys of the summary that one line of JSON holds; all of them are in the run's summary.json.
_LINE_KEYS = ("success_before", "success_after", "train_seconds", "steps", "peak_rss_mb", "run")

AdminKey = Annotated[
    str | None,
    typer.Option(envvar="LUDUS_ADMIN_KEY", help="Key to administer the gateway with; one is made and shown."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings on top of the file, such as trainer.optimizer.lr=2e-5."),
]


def train(
    config: Annotated[
        str | None, typer.Argument(metavar="RUN.YAML", help="The run's configuration; without it all keys are given.")
    ] = None,
    overrides: Overrides = None,
    config_class: Annotated[
        str | None,
        typer.Option(help="A dataclass that extends the configuration and makes the agent, such as my_mod.MyConfig."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's latest checkpoint instead of beginning it.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="If there is a run of that name, begin another beside it: NAME-2, NAME-3 …")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON: the figures of the run.")] = False,
    admin_key: AdminKey = None,
) -> None:
    """Train the model inside an agent.

    The configuration names the model, the agent and the rows it plays.
    Everything about the run is kept in its folder, runs/NAME by default:
    episodes, metrics, checkpoints, the trained model, a report.
    Ctrl-C saves a checkpoint and leaves; a second Ctrl-C leaves at once.

    [bold]Examples:[/]  ludus train run.yaml

      ludus train run.yaml name=hotter gconfig.temperature=1.2

      ludus train run.yaml --resume

      ludus train workflow=agent.py:Agent train_dataset.path=rows.jsonl total_train_steps=20

      ludus train --config-class my_mod.MyConfig my_param=5.0
    """
    path, keys = file_and_keys(config, overrides or ())
    if path is None and not keys and config_class is None:
        raise UserError(
            "ludus train needs a configuration: RUN.YAML, or keys such as workflow=agent.py:Agent "
            "train_dataset.path=rows.jsonl, or --config-class my_mod.MyConfig"
        )
    settings = load_config(path, keys, config_class=config_class)
    if new:
        settings = settings.model_copy(update={"name": free_name(Path(settings.run_root), settings.name)})
    console = Console()
    named = [*([str(path)] if path else []), *(["--config-class", config_class] if config_class else [])]
    if wants_job(settings):
        flags = [*(["--resume"] if resume else []), *(["--json"] if as_json else [])]
        _show_job(console, settings, [*named, *keys, f"name={settings.name}", *flags], resume)
        return

    def say_where(url: str, key: str) -> None:
        console.print(f"sessions are taken at [bold]{url}[/]", highlight=False)
        if admin_key is None:
            console.print(f"admin key [bold]{key}[/], shown this once", highlight=False, soft_wrap=True)

    with watch(console, settings.name) as observer:
        trainer = Trainer(settings)
        summary = trainer.train(resume=resume, observer=observer, on_gateway=say_where, admin_key=admin_key)
    _show(console, summary)
    if summary.stopped_by == INTERRUPT:
        again = " ".join(["ludus train", *named, *keys, "--resume"])
        console.print(f"interrupted and saved; go on with [bold]{escape(again)}[/]", highlight=False, soft_wrap=True)
    if as_json:
        _show_line(console, summary)


def file_and_keys(first: str | None, others: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file or folder, and everything that is KEY=VALUE; without the former a key stands in its place."""
    if first is not None and "=" in first and not Path(first).exists():
        return None, [first, *others]
    return None if first is None else Path(first), list(others)


def _show_line(console: Console, summary: RunSummary) -> None:
    told = summary.to_json()
    line = json.dumps({key: told[key] for key in _LINE_KEYS})
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _show_job(console: Console, config: Config, arguments: Sequence[str], resume: bool) -> None:
    job = submit_training(config, arguments, resume=resume)
    look = f"ludus status {escape(str(config.folder))}"
    console.print(f"submitted as job [bold]{job}[/]; look at it with [bold]{look}[/]", highlight=False, soft_wrap=True)


def _show(console: Console, summary: RunSummary) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("held out", "before", "after"):
        table.add_column(column, justify="left" if column == "held out" else "right")
    table.add_row("success", _percent(summary.success_before), _percent(summary.success_after))
    table.add_row("reward", _number(summary.reward_before), _number(summary.reward_after))
    if summary.success_after is not None or summary.reward_after is not None:
        console.print(table)
    took = f"{summary.steps} steps in {duration(summary.train_seconds)}, at most {summary.peak_rss_mb:,.0f} MB"
    console.print(f"[dim]trained  [/] {took} [dim]({summary.stopped_by})[/]", highlight=False)
    masked = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.ledger.masked.items()))
    tokens = f"{summary.ledger.sampled:,} sampled = {summary.ledger.trained:,} trained + {masked or '0 masked'}"
    console.print(f"[dim]tokens   [/] {tokens}", highlight=False, soft_wrap=True)
    for label, path in (("model", summary.model), ("report", _report(Path(summary.run)))):
        if path is not None:
            console.print(f"[dim]{label:<9}[/] {path}", highlight=False, soft_wrap=True)


def _report(folder: Path) -> str | None:
    """The page. None: what draws it is not installed; `ludus report` says so."""
    with RunStore.open(folder) as store:
        try:
            return str(write_report(store, decode=decoder_of(store)).html)
        except UserError:
            return None


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
