"""`ludus verify`: checks Ludus's guarantees on this machine, with the components that users run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from rich.console import Console
from typer import Option

from ludus.checks.verify.parity import Dtype
from ludus.checks.verify.verdict import Verdict
from ludus.cli.console import Bar, counting, end, plain_table, say, say_json, waiting
from ludus.cli.log import expect_warnings
from ludus.cli.options import JsonAlone, Model

OPTIONS: dict[str, Any] = {
    "dtype": Annotated[Dtype, Option(help="Precision of the weights.")],
    "tokens": Annotated[int, Option(min=1, help="Tokens to sample and compare, at least.")],
    "trees": Annotated[int, Option(min=1, help="Random sessions to check.")],
    "kill_at_step": Annotated[int, Option(min=1, help="The run is killed in the middle of this step.")],
    "kills": Annotated[int, Option(min=1, help="Faults that happen to processes of the run, of any kind.")],
    "ranks": Annotated[list[int], Option(help="Compared with one rank; may be given again.")],
    "steps": Annotated[int, Option(min=2, help="Of a training from its beginning to its end.")],
    "algorithm": Annotated[str, Option(help="What the run is trained with, such as ppo.")],
    "model": Model,
    "run": Annotated[str | None, Option(help="Folder of a run that was trained before.")],
    "seed": Annotated[int, Option(help="Everything random in the check comes from this number.")],
}
"""The command-line option for each parameter of a check; parameters that are not here can be set in Python only."""
ONE_OF = {"ranks": Annotated[int, Option(min=1, help="Processes of the trainer.")]}
"""Options for checks that take a single number where others take several."""


def command(check: Callable[..., Verdict]) -> Callable[..., None]:
    """The check as a command, with its parameters, its docstring, and `--json`."""
    parameters = inspect.signature(check).parameters.values()

    def run(as_json: bool, **options: Any) -> None:
        expect_warnings()
        is_counted = any(each.name == "on_done" for each in parameters)
        with counting("checking", None, quiet=as_json) if is_counted else waiting("checking", quiet=as_json) as bar:
            done = {"on_done": bar.reach} if isinstance(bar, Bar) else {}
            verdict = check(**options, **done)
        _show(verdict, as_json)

    options = [each.replace(annotation=_option(each)) for each in parameters if each.name in OPTIONS]
    json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonAlone)
    vars(run)["__signature__"] = inspect.Signature([*options, json])
    run.__doc__ = (check.__doc__ or "").partition("Raises ")[0]
    return run


def _option(parameter: inspect.Parameter) -> Any:
    is_one = isinstance(parameter.default, int) and parameter.name in ONE_OF
    return ONE_OF[parameter.name] if is_one else OPTIONS[parameter.name]


def _show(verdict: Verdict, as_json: bool) -> None:
    body = verdict.to_json()
    if as_json:
        say_json(body)
    else:
        if verdict.details:
            table = plain_table(*(name.replace("_", " ") for name in verdict.details[0]))
            for row in verdict.details:
                table.add_row(*map(_cell, row.values()))
            Console().print(table)
        table = plain_table()
        for name, value in body.items():
            if name != "ok":
                table.add_row(f"[dim]{name}[/]", _cell(value))
        Console().print(table)
        say("[bold green]ok[/]" if verdict.ok else "[bold red]FAILED[/]")
    end(verdict.ok)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
    if isinstance(value, bool) or value is None:
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
