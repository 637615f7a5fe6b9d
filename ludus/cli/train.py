"""`ludus train`: trains a run from its configuration, with live output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from ludus.algorithms.explain import explain_run
from ludus.api.live import duration, watch
from ludus.api.trainer import Trainer
from ludus.cli.console import plain_table, say, say_json, show_admin_key
from ludus.cli.options import AdminKey, Overrides, file_and_keys
from ludus.cli.signals import raise_if_unfinished
from ludus.cli.submit import submit_training, wants_job
from ludus.cli.watch import watching
from ludus.compat.config import Config, load_config
from ludus.errors import UserError
from ludus.loop.observer import RunSummary
from ludus.loop.train import INTERRUPT
from ludus.runs.decoder import decoder_of
from ludus.runs.names import free_name
from ludus.runs.report import write_report
from ludus.runs.store import RunStore

# Keys of the summary that are in the line of JSON; summary.json has all of them.
_LINE_KEYS = ("success_before", "success_after", "train_seconds", "steps", "peak_rss_mb", "run")


def train(
    config: Annotated[
        str | None, Argument(metavar="RUN.YAML", help="The run's configuration; without it all keys are given.")
    ] = None,
    overrides: Overrides = None,
    config_class: Annotated[
        str | None, Option(help="Of a dataclass that extends the configuration and makes the agent: my_mod.MyConfig.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the run's latest checkpoint.")] = False,
    new: Annotated[bool, Option("--new", help="Beside a run of that name begin NAME-2, NAME-3 …")] = False,
    watched: Annotated[
        bool, Option("--watch", help="Serve a page on which the run is watched; see ludus watch.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="End with one line of JSON: the results of the run.")] = False,
    explained: Annotated[
        bool, Option("--explain", help="Show the objective as formulas, with sources, and end.")
    ] = False,
    admin_key: AdminKey = None,
) -> None:
    """Train the model inside an agent.

    The configuration names the model, the agent and the rows it plays.
    Everything about the run is kept in its folder, runs/NAME by default:
    episodes, metrics, checkpoints, the trained model, a report.
    Ctrl-C saves a checkpoint and leaves, as SIGTERM and the end of the
    terminal do; a second Ctrl-C leaves at once.

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
    if explained:
        return _explain(settings)
    if new:
        settings = settings.model_copy(update={"name": free_name(Path(settings.run_root), settings.name)})
    named = [*([str(path)] if path else []), *(["--config-class", config_class] if config_class else [])]
    if wants_job(settings):
        flags = [*(["--resume"] if resume else []), *(["--json"] if as_json else [])]
        job = submit_training(settings, [*named, *keys, f"name={settings.name}", *flags], resume=resume)
        look = f"ludus status {escape(str(settings.folder))}"
        return say(f"submitted as job [bold]{job}[/]; look at it with [bold]{look}[/]")

    summary = _train(settings, resume=resume, watched=watched, admin_key=admin_key)
    return _show(summary, ["ludus train", *named, *keys, "--resume"], as_json)


def _train(settings: Config, *, resume: bool, watched: bool, admin_key: str | None) -> RunSummary:
    """Train with live output in the terminal, and the page in a browser if `watched`."""

    def say_where(url: str, key: str) -> None:
        say(f"sessions are taken at [bold]{url}[/]")
        show_admin_key(key, admin_key)

    with ExitStack() as beside:
        if watched:
            say(f"watch it at [bold]{escape(beside.enter_context(watching(settings.folder)))}[/]")
        observer = beside.enter_context(watch(Console(), settings.name))
        trainer = Trainer(settings)
        return trainer.train(resume=resume, observer=observer, on_gateway=say_where, admin_key=admin_key)


def _explain(config: Config) -> None:
    """Show the objective, one line for each symbol, and the optimizer."""
    table = plain_table(f"algorithm {config.algorithm.name}", "", "source")
    for term in explain_run(config.algorithm, config.model_dump(mode="json")):
        table.add_row(term.name, escape(term.formula), f"[dim]{escape(term.source)}[/]")
    optimizer, num_groups = config.trainer.optimizer, config.train_dataset.batch_size
    num_steps = min(config.algorithm.minibatches, num_groups) * config.algorithm.epochs
    steps = f"AdamW, lr {optimizer.lr:g} ({optimizer.decay}), {num_steps} on each batch of {num_groups} "
    alone = config.critic.warmup_steps if config.has_critic else 0
    after = f"; on the first {alone} batches of the critic alone" if alone else ""
    table.add_row("steps", f"{steps}groups of {config.gconfig.n_samples}{after}", "")
    Console().print(table)


def _show(summary: RunSummary, again: Sequence[str], as_json: bool) -> None:
    """Show the summary. again: the command that resumes an interrupted run."""
    table = plain_table("held out", "before", "after", right=("before", "after"))
    table.add_row("success", *_cells("{:.1%}", summary.success_before, summary.success_after))
    table.add_row("reward", *_cells("{:.3f}", summary.reward_before, summary.reward_after))
    if summary.success_after is not None or summary.reward_after is not None:
        Console().print(table)
    took = f"{summary.steps} steps in {duration(summary.train_seconds)}, at most {summary.peak_rss_mb:,.0f} MB"
    say(f"[dim]trained  [/] {took} [dim]({summary.stopped_by})[/]")
    masked = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.ledger.masked.items()))
    tokens = f"{summary.ledger.sampled:,} sampled = {summary.ledger.trained:,} trained + {masked or '0 masked'}"
    say(f"[dim]tokens   [/] {tokens}")
    for label, path in (("model", summary.model), ("report", _report(Path(summary.run)))):
        if path is not None:
            say(f"[dim]{label:<9}[/] {path}")
    if summary.stopped_by == INTERRUPT:
        say(f"interrupted and saved; go on with [bold]{escape(' '.join(again))}[/]")
    if as_json:
        body = summary.to_json()
        say_json({key: body[key] for key in _LINE_KEYS})
    raise_if_unfinished(summary.signal)


def _report(folder: Path) -> str | None:
    """Write the report; returns its path. None: a library for it is not installed, which `ludus report` reports."""
    with RunStore.open(folder) as store:
        try:
            return str(write_report(store, decode=decoder_of(store)).html)
        except UserError:
            return None


def _cells(form: str, *values: float | None) -> list[str]:
    return ["–" if value is None else form.format(value) for value in values]
