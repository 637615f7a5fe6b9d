"""The commands put together, and what becomes of an error on its way out.

Exit codes: 0 it worked; 1 a check failed or Ludus did; 2 the command, its files or its settings need a change;
130 it was interrupted.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from ludus.cli.console import EXIT_FAILED
from ludus.cli.log import show_log
from ludus.errors import LudusError, UserError

EXIT_USER = 2
EXIT_INTERRUPTED = 130  # as shells say: ended by signal 2
GROUPS = {
    "import": "Take along what you already have: ART's folders, verl's rows, AReaL's YAML.",
    "models": "List, fetch and find models: embedded ones, local folders and hub ids work alike.",
    "data": "Prepare data sets that recipes train on, as tables of rows.",
    "engine": "Engines as processes of their own: tokens in, tokens out.",
    "verify": "Check the laws of Ludus on this machine: each command ends with ok or FAILED, and exit code 0 or 1.",
    "bench": "Measure this machine: Ludus and a peer do the same work in fresh processes, in turn.",
}
COMMANDS = {
    "train": ("train:train", "Train the model inside an agent."),
    "rollout": ("rollout:rollout", "Run an agent on rows without training, and show every turn."),
    "eval": ("eval:evaluate", "Play the held-out rows of a run and show what came of it."),
    "status": ("runs:status", "Show which processes a run has, where they are, and whether they live."),
    "stop": (
        "runs:stop",
        "Have a run save a checkpoint and leave, as Ctrl-C in its terminal would; `--resume` goes on with it.",
    ),
    "report": ("report:report", "Write one HTML page about a run, and a PNG of its reward curve."),
    "export": (
        "export:export",
        "Write every recorded interaction of a run: messages, token ids, masks, logprobs, rewards.",
    ),
    "gateway": (
        "gateway:gateway",
        "Serve a model at an OpenAI-compatible URL, until Ctrl-C, and record every session.",
    ),
    "serve": ("serve:serve", "Train models for clients elsewhere, until Ctrl-C."),
    "doctor": ("doctor:doctor", "Does a chat template keep what was sampled, turn after turn?"),
    "conformance": ("conformance:conformance", "Does a server keep what the public protocols say?"),
    "role": ("role:role", "Be one process of a run; runs start these by themselves."),
    "import art": ("imports:import_art_folder", "Trajectories, history and state of ART's models."),
    "import verl": ("imports:import_verl_rows", "Rows of verl, as rows that the same agent loops play here."),
    "import areal": ("imports:import_areal_yaml", "A configuration of AReaL, as one that `ludus train` loads."),
    "models list": ("models:list_models", "Show the models that come with Ludus, and which are here already."),
    "models get": ("models:get_model", "Bring a model to this machine, so that training needs no network."),
    "models path": ("models:print_path", "Print the folder of a model, for other programs."),
    "models random": (
        "models:make_random",
        "Write a model with random weights, to measure the speed of a shape without downloading one.",
    ),
    "data gsm8k": (
        "data:gsm8k",
        "Write GSM8K, 8.8 thousand word problems of school mathematics, for agent loops.",
    ),
    "engine serve": ("engine:serve", "Serve a model's tokens, until Ctrl-C, to runs that name its URL."),
    "verify parity": ("verify:parity", "Do sampler and trainer agree on the logprob of every token?"),
    "verify ledger": ("verify:ledger", "Is every sampled token trained once, or masked for one named reason?"),
    "verify packing": ("verify:packing", "Is the gradient of packed rows that of one episode at a time?"),
    "verify resume": ("verify:resume", "Does a run that was killed go on as if nothing had happened?"),
    "verify ranks": ("verify:ranks", "Is a trainer on several ranks the trainer on one?"),
    "verify credit": ("verify:credit", "Do turns get the returns that a person computes by hand?"),
    "verify dialects": ("verify:dialects", "Does an agent get the same tokens in every wire protocol?"),
    "verify doors": ("verify:doors", "Does a dialogue train the same, whichever family of agents has it?"),
    "bench sample": ("bench:sample", "How many tokens a second are sampled?"),
    "bench train": ("bench:train", "How many tokens a second are trained on, and in how much memory?"),
    "bench step": ("bench:step", "How long does a whole step of GRPO take: sampling, training, publishing?"),
    "bench gateway": (
        "bench:gateway",
        "What does the gateway add to the engine's time, and how many requests a second does it answer?",
    ),
    "bench turns": ("bench:turns", "Do twice as many turns cost twice as much?"),
    "bench publish": ("bench:publish", "What does it cost to publish new weights while requests are being sampled?"),
    "bench trace": ("bench:trace", "What do traces in MLflow cost?"),
    "bench replicas": ("bench:replicas", "How many more episodes a second do two replicas play than one?"),
    "bench overlap": (
        "bench:overlap",
        "What is it worth to agents with slow tools that rollouts run ahead of training?",
    ),
}
"""Of each command its module and function, and the first words of its help."""


class Command(TyperCommand):
    """A command as lists of commands show it; its module is imported once it is run."""

    def __init__(self, name: str, place: str, says: str) -> None:
        super().__init__(name, help=says, hidden=name == "role")
        self._place = place

    def load(self) -> TyperCommand:
        """The command itself."""
        module, _, function = self._place.partition(":")
        app = typer.Typer(rich_markup_mode="rich", add_completion=False)
        app.command(self.name)(getattr(import_module(f"ludus.cli.{module}"), function))
        loaded: Any = typer.main.get_command(app)
        return loaded  # type: ignore[no-any-return]  # typer says Command, and makes its own

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Exit code of `ludus ARGUMENTS`; errors raised on purpose are one message on stderr."""
    try:
        build_app()(args=arguments, prog_name="ludus")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return _interrupted() if code == EXIT_INTERRUPTED else code
    except UserError as error:
        _explain(error)
        return EXIT_USER
    except LudusError as error:
        _explain(error)
        logging.getLogger(__name__).debug("where it came from", exc_info=error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _interrupted()
    return 0


def build_app() -> TyperGroup:
    """Every command, none of them imported."""
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
    for path, (place, says) in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        (groups[group] if group else root).add_command(Command(name, place, says))
    root.commands.update(groups)
    return root


def _configure(
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Show what happens inside: -v lifecycle, -vv every request."),
    ] = 0,
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
    missing = error.__context__  # an import string of an original, perhaps, whose names are here too
    named = missing.name if isinstance(missing, ModuleNotFoundError) else None
    place = "" if named is None else import_module("ludus.compat.names").hint(named)
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]{kind}:[/] {escape(str(error) + place)}")
