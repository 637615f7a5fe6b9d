"""Mutation test of the suite: runs it against servers with one fault each, which must be detected.

Knows: faults, cases.  Knows not: how faults are injected.
A fault is detected when a case fails that passes on the server without it. That server's requests and answers are
parsed and serialized in the same way, so that only the fault itself can be detected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ludus.checks.conformance.case import Case, found
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.faults import chat, engine, gateway, protocols
from ludus.checks.conformance.faults.base import Fault
from ludus.checks.conformance.local_server import LocalServer, ServerParts
from ludus.checks.conformance.rewrite import Rewrite, RewritingApp
from ludus.checks.conformance.run import CaseResult, SuiteReport, local_target, run_cases

FAULTS: tuple[Fault, ...] = found(Fault, chat, protocols, gateway, engine)
LEAST_CAUGHT = 0.95
WHOLE_TIMEOUT_S = 20.0  # for the server without a fault, as the machine may be busy
TIMEOUT_S = 5.0  # after this time a fault that makes a case hang counts as detected


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result for one fault."""

    fault: Fault
    by: CaseResult | None
    """The first case that failed. None: the fault was not detected."""
    num_played: int


@dataclass(frozen=True, slots=True)
class MutantReport:
    """The results for all faults."""

    whole: SuiteReport
    """The report of the server without a fault."""
    results: tuple[MutantResult, ...]
    seconds: float

    @property
    def num_caught(self) -> int:
        return sum(one.by is not None for one in self.results)

    @property
    def ok(self) -> bool:
        return self.whole.ok and self.num_caught >= LEAST_CAUGHT * len(self.results)

    def to_json(self) -> dict[str, object]:
        return {
            "mutants": len(self.results),
            "caught": self.num_caught,
            "missed": [one.fault.name for one in self.results if one.by is None],
            "failed_without_fault": [result.case.name for result in self.whole.of("failed")],
            "seconds": round(self.seconds, 1),
        }


async def run_mutants(
    cases: Sequence[Case], faults: Sequence[Fault], on_done: Callable[[int], object] | None = None
) -> MutantReport:
    """Run `cases` against each of `faults` until one fails. on_done: called with the number of finished faults."""
    began_at = time.monotonic()
    results: list[MutantResult] = []
    async with Clients(WHOLE_TIMEOUT_S) as clients:
        with LocalServer(ServerParts(app=lambda app: RewritingApp(app, Rewrite()))) as server:
            whole = await run_cases(cases, local_target(server), clients, timeout_s=WHOLE_TIMEOUT_S)
        sound = tuple(result.case for result in whole.of("passed"))
        for fault in faults:
            results.append(await _hunt_one(fault, sound, clients))
            if on_done is not None:
                on_done(len(results))
    return MutantReport(whole, tuple(results), time.monotonic() - began_at)


async def _hunt_one(fault: Fault, cases: Sequence[Case], clients: Clients) -> MutantResult:
    near = tuple(case for case in cases if case.name.startswith(fault.near))
    far = tuple(case for case in cases if not case.name.startswith(fault.near))
    num_played = 0
    with LocalServer(fault.parts) as server:
        for group in (near, far):
            report = await run_cases(group, local_target(server), clients, timeout_s=TIMEOUT_S, until_failure=True)
            num_played += len(report.results)
            if not report.ok:
                return MutantResult(fault, report.of("failed")[0], num_played)
    return MutantResult(fault, None, num_played)
