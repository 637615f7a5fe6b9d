"""`ludus replay`: repeats a run's training from its record."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from ludus.api.live import duration, watch
from ludus.api.replay import Replayed
from ludus.api.replay import replay as train_again
from ludus.cli.console import say, say_json, show_damages
from ludus.cli.options import JsonFigures, Overrides
from ludus.cli.signals import raise_if_unfinished
from ludus.compat.config import load_config
from ludus.runs.store import RunStore


def replay(
    run: Annotated[Path, Argument(metavar="RUN", help="The run's folder, such as runs/guess.")],
    overrides: Overrides = None,
    from_step: Annotated[int, Option("--from", min=0, help="Begin with the run's checkpoint of this step.")] = 0,
    as_json: JsonFigures = False,
) -> None:
    """Train once more on what a run was trained on, without playing it again.

    Every step gets the episodes that it was given, as they are in the
    record: with the settings of the run, on the same machine, the weights
    come out the same to the last bit. With other settings, such as
    algorithm.*, it is offline training on what was played, and each token
    weighs what the algorithm's correction gives to tokens that another
    policy sampled. The run that it makes lies beside the first, as
    NAME-replay unless name=... is given.

    [bold]Examples:[/]  ludus replay runs/guess

      ludus replay runs/guess --from 40

      ludus replay runs/guess algorithm.name=gspo name=guess-gspo
    """
    with RunStore.look(run) as record:
        show_damages(record.damages())
        name = record.name
    with watch(Console(), f"{name}, replayed") as observer:
        replayed = train_again(
            run,
            overrides or (),
            load=lambda path, keys: load_config(path, list(keys)),
            from_step=from_step,
            observer=observer,
        )
    _show(replayed)
    if as_json:
        body = {**asdict(replayed), "summary": None, "run": replayed.summary.run, "steps": replayed.summary.steps}
        say_json({key: value for key, value in body.items() if key != "summary"})
    raise_if_unfinished(replayed.summary.signal)


def _show(replayed: Replayed) -> None:
    summary = replayed.summary
    faster = "" if replayed.times_faster is None else f", {replayed.times_faster:.1f} times as fast as they were played"
    steps = f"steps {replayed.from_step + 1} to {summary.steps} of {replayed.of}"
    say(f"[dim]replayed [/] {escape(steps)} in {duration(summary.train_seconds)}{faster}")
    for each in replayed.changed:
        say(f"[dim]offline  [/] {escape(each)}")
    if replayed.changed:
        say("[dim]         [/] what was played is another policy's: its tokens are weighed by algorithm.correction")
    elif replayed.weights_equal is not None:
        said = "equal to the last bit" if replayed.weights_equal else "[bold red]not[/] equal"
        say(f"[dim]weights  [/] {said}")
    say(f"[dim]model    [/] {summary.model or 'none: it was interrupted'}")
