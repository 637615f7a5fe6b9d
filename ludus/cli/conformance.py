"""`ludus conformance`: a server of the public protocols, tried case by case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated

from rich.console import Console
from typer import Option

from ludus.checks.conformance.case import Case
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.local_server import LocalServer
from ludus.checks.conformance.matrix import mutants_shown, shown
from ludus.checks.conformance.mutants import FAULTS, MutantReport, run_mutants
from ludus.checks.conformance.run import SuiteReport, local_target, remote_target, run_cases
from ludus.checks.conformance.suite import chosen
from ludus.cli.console import counting, end, say_json
from ludus.cli.log import expect_warnings
from ludus.errors import UserError

LOCAL_TIMEOUT_S = 20.0  # a hundred times the duration of a case, as the machine may be busy
REMOTE_TIMEOUT_S = 60.0  # a real model answers several requests of a case, while other cases run


def conformance(
    base_url: Annotated[str | None, Option(metavar="URL", help="Another server, such as http://host:8000/v1.")] = None,
    model: Annotated[str | None, Option(help="With --base-url: the model's name; else its first.")] = None,
    api_key: Annotated[str, Option(envvar="OPENAI_API_KEY", help="Key for --base-url.", show_default=False)] = "none",
    only: Annotated[str | None, Option(metavar="PATTERN", help="Cases whose name holds or matches it.")] = None,
    mutants: Annotated[bool, Option("--mutants", help="Run the cases against servers that are wrong.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Does a server keep what the public protocols say?

    The openai and anthropic packages run every case over a socket: against
    the local gateway with answers that are written down, so that every token
    can be checked; or with --base-url against any compatible server.

    [bold]Examples:[/]  ludus conformance

      ludus conformance --base-url http://localhost:8000/v1 --only chat/

      ludus conformance --mutants
    """
    if mutants and base_url is not None:
        raise UserError("--mutants puts faults into the local server; leave --base-url out")
    if model is not None and base_url is None:
        raise UserError(f"--model {model} names a model of another server; add --base-url, or leave it out")
    cases = chosen(only)
    expect_warnings()
    report: SuiteReport | MutantReport
    if mutants:
        with counting("hunting", len(FAULTS)) as bar:
            report = asyncio.run(run_mutants(cases, FAULTS, on_done=bar.reach))
    else:
        with counting("running", len(cases)) as bar:
            report = asyncio.run(_play(cases, base_url, model, api_key, bar.advance))
    Console(highlight=False, soft_wrap=True).print(
        mutants_shown(report) if isinstance(report, MutantReport) else shown(report)
    )
    if as_json:
        say_json(report.to_json())
    end(report.ok)


async def _play(
    cases: tuple[Case, ...], base_url: str | None, model: str | None, api_key: str, on_result: Callable[[object], None]
) -> SuiteReport:
    timeout_s = LOCAL_TIMEOUT_S if base_url is None else REMOTE_TIMEOUT_S
    async with Clients(timeout_s) as clients:
        with ExitStack() as stack:
            if base_url is None:
                target = local_target(stack.enter_context(LocalServer()))
            else:
                target = await remote_target(clients, base_url, model=model, api_key=api_key)
            return await run_cases(cases, target, clients, timeout_s=timeout_s, on_result=on_result)
