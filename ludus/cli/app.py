"""The commands put together, and what becomes of an error on its way out.

Exit codes: 0 it worked; 1 a check failed or Ludus did; 2 the command, its files or its settings need a change;
130 it was interrupted.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ludus.cli.bench import build_bench_app
from ludus.cli.conformance import conformance
from ludus.cli.data import build_data_app
from ludus.cli.doctor import doctor
from ludus.cli.engine import build_engine_app
from ludus.cli.eval import evaluate
from ludus.cli.export import export
from ludus.cli.gateway import gateway
from ludus.cli.imports import build_import_app
from ludus.cli.log import show_log
from ludus.cli.models import build_models_app
from ludus.cli.report import report
from ludus.cli.role import role
from ludus.cli.rollout import rollout
from ludus.cli.runs import status, stop
from ludus.cli.serve import serve
from ludus.cli.train import train
from ludus.cli.verify import build_verify_app
from ludus.errors import LudusError, UserError

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130  # as shells say: ended by signal 2


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


def build_app() -> typer.Typer:
    """A fresh application with every command."""
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
    app.command("train")(train)
    app.command("rollout")(rollout)
    app.command("eval")(evaluate)
    app.command("status")(status)
    app.command("stop")(stop)
    app.command("report")(report)
    app.command("export")(export)
    app.add_typer(build_import_app(), name="import")
    app.add_typer(build_models_app(), name="models")
    app.add_typer(build_data_app(), name="data")
    app.command("gateway")(gateway)
    app.command("serve")(serve)
    app.add_typer(build_engine_app(), name="engine")
    app.command("doctor")(doctor)
    app.add_typer(build_verify_app(), name="verify")
    app.command("conformance")(conformance)
    app.add_typer(build_bench_app(), name="bench")
    app.command("role", hidden=True)(role)
    return app


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
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]{kind}:[/] {escape(str(error))}")
