"""Builds the command line from its commands, and turns errors into messages and exit codes.

Exit codes: 0 it worked; 1 a check failed or Ludus did; 2 the command, its files or its settings need a change;
130 it was interrupted; 128 + the signal: a supervisor ended a training, which was saved.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer import Option
from typer.core import TyperCommand, TyperGroup

from ludus.cli.console import EXIT_FAILED
from ludus.cli.log import show_log
from ludus.errors import LudusError, UserError

EXIT_USER = 2
EXIT_INTERRUPTED = 130  # as in shells: 128 + SIGINT
GROUPS = {
    "import": "Take along what you already have: ART's folders, verl's rows, AReaL's YAML.",
    "models": "List, fetch and find models: embedded ones, local folders and hub ids work alike.",
    "data": "Prepare data sets that recipes train on, as tables of rows.",
    "engine": "Engines as processes of their own: tokens in, tokens out.",
    "verify": "Check the laws of Ludus on this machine: each command ends with ok or FAILED, and exit code 0 or 1.",
    "bench": "Measure this machine: Ludus and a peer do the same work in fresh processes, in turn.",
}
_PACKAGE = Path(__file__).parents[1]
_CHECKS = (
    "parity",
    "ledger",
    "packing",
    "resume",
    "replay",
    "signals",
    "chaos",
    "ranks",
    "credit",
    "dialects",
    "doors",
)
_BENCHES = (
    *("sample", "train", "step", "learn", "curves", "gateway", "turns", "publish", "row", "quota", "trace", "replicas"),
    "overlap",
)
COMMANDS = {
    "train": "cli.train:train",
    "plan": "cli.plan:plan",
    "run": "cli.run:run",
    "replay": "cli.replay:replay",
    "rollout": "cli.rollout:rollout",
    "eval": "cli.eval:evaluate",
    "status": "cli.runs:status",
    "stop": "cli.runs:stop",
    "report": "cli.report:report",
    "watch": "cli.watch:watch",
    "export": "cli.export:export",
    "gateway": "cli.gateway:gateway",
    "serve": "cli.serve:serve",
    "doctor": "cli.doctor:doctor",
    "conformance": "cli.conformance:conformance",
    "role": "cli.role:role",
    "sampler": "cli.sampler:sampler",
    "import art": "cli.imports:import_art_folder",
    "import verl": "cli.imports:import_verl_rows",
    "import areal": "cli.imports:import_areal_yaml",
    "models list": "cli.models:list_models",
    "models get": "cli.models:get_model",
    "models path": "cli.models:print_path",
    "models random": "cli.models:make_random",
    "data gsm8k": "cli.data:gsm8k",
    "engine serve": "cli.engine:serve",
    **{f"verify {name}": f"checks.verify.{name}:verify_{name}" for name in _CHECKS},
    **{f"bench {name}": f"cli.bench:{name}" for name in _BENCHES},
    "bench gpu": "cli.bench_gpu:gpu",
}
"""Module and function of each command. The first line of its docstring is shown in lists of commands."""


class Command(TyperCommand):
    """A command whose module is imported only when it is run; its help line is read from the source."""

    def __init__(self, name: str, path: str) -> None:
        self._module, _, self._function = path.partition(":")
        source = _PACKAGE.joinpath(*self._module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        said = re.search(rf'^def {self._function}\(.*?"""(.+?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
        assert said is not None, f"{path} has a docstring"
        super().__init__(name, help=" ".join(said[1].split()), hidden=name in ("role", "sampler"))

    def load(self) -> TyperCommand:
        """Import the command."""
        app = typer.Typer(rich_markup_mode="rich", add_completion=False)
        function = getattr(import_module(f"ludus.{self._module}"), self._function)
        if self._module.startswith("checks.verify"):
            function = import_module("ludus.cli.verify").command(function)
        if self._module.startswith(("checks.", "cli.bench")):  # they start their own processes, in their own folders
            function = import_module("ludus.cli.signals").leaving_by_exception()(function)
        # options after the script belong to the script
        app.command(self.name, context_settings={"allow_interspersed_args": self.name != "run"})(function)
        loaded: Any = typer.main.get_command(app)
        return loaded  # type: ignore[no-any-return]  # typer says Command, and makes its own

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)


def main() -> None:
    """Run the command line and exit with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run `ludus ARGUMENTS`; returns the exit code. Expected errors are printed as one message on stderr."""
    try:
        build_app()(args=arguments, prog_name="ludus")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):  # a message that a user's script passed to sys.exit
            sys.stderr.write(f"{leaving.code}\n")
        return _interrupted() if code == EXIT_INTERRUPTED else code
    except LudusError as error:
        _explain(error)
        logging.getLogger(__name__).debug("where it came from", exc_info=error)
        return EXIT_USER if isinstance(error, UserError) else EXIT_FAILED
    except KeyboardInterrupt:
        return _interrupted()
    return 0


def build_app() -> TyperGroup:
    """The group of all commands, without importing them."""
    app = typer.Typer(
        name="ludus",
        help="Train the model inside any LLM agent with reinforcement learning.",
        epilog="Begin with [bold]ludus models get smollm2-135m[/], then [bold]ludus train run.yaml[/].",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_configure)
    root = typer.main.get_group(app)
    groups = {
        name: TyperGroup(name=name, help=says, no_args_is_help=True, commands={}) for name, says in GROUPS.items()
    }
    for words, path in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        (groups[group] if group else root).add_command(Command(name, path))
    root.commands.update(groups)
    return root


def _configure(
    verbose: Annotated[int, Option("--verbose", "-v", count=True, help="-v: lifecycle, -vv: every request.")] = 0,
) -> None:
    """Train the model inside any LLM agent with reinforcement learning.

    Your agent keeps its code and its SDK; Ludus serves the model it talks
    to, records every token as it was sampled, and updates the weights.
    """
    show_log(verbose)


def _interrupted() -> int:
    Console(stderr=True, highlight=False).print("interrupted")
    return EXIT_INTERRUPTED


def _explain(error: LudusError) -> None:
    kind = "error" if isinstance(error, UserError) else type(error).__name__
    missing = error.__context__  # perhaps an import string of a framework whose names Ludus provides
    named = missing.name if isinstance(missing, ModuleNotFoundError) else None
    hint = "" if named is None else import_module("ludus.compat.names").hint(named)
    said = "\n".join([str(error) + hint, *vars(error).get("__notes__", ())])
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]{kind}:[/] {escape(said)}")
