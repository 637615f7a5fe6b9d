"""Runs cases against one server, several at a time, each with a time limit; failures are data.

Knows: cases, probes.  Knows not: what a case tests, terminals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from ludus.checks.conformance.case import Case
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.expect import ExpectationError, shown
from ludus.checks.conformance.local_server import LocalServer
from ludus.checks.conformance.probe import KEY, Probe, Target
from ludus.checks.conformance.words import CHAT, WORDS
from ludus.errors import UserError

Verdict = Literal["passed", "failed", "skipped"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LOCAL_MAX_TOKENS = 400  # more than any scripted answer
REMOTE_MAX_TOKENS = 48  # enough for a sentence, and fast
AT_ONCE = 16  # enough to hide the waiting times of some cases, few enough for a server with one device


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case."""

    case: Case
    verdict: Verdict
    what: str = ""
    """For a failed case what was checked, for a skipped one the reason."""
    expected: str = ""
    got: str = ""


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """The results of all cases, in order."""

    results: tuple[CaseResult, ...]
    seconds: float

    def of(self, verdict: Verdict) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if result.verdict == verdict)

    @property
    def ok(self) -> bool:
        return not self.of("failed")

    def to_json(self) -> dict[str, object]:
        return {
            **{verdict: len(self.of(verdict)) for verdict in VERDICTS},
            "seconds": round(self.seconds, 1),
            "failures": {
                result.case.name: {"what": result.what, "expected": result.expected, "got": result.got}
                for result in self.of("failed")
            },
        }


def local_target(server: LocalServer) -> Target:
    """The local server as target; every case gets its own session."""
    return Target("", KEY, server.recorder.names.name, LOCAL_MAX_TOKENS, server)


async def remote_target(clients: Clients, base_url: str, *, model: str | None, api_key: str) -> Target:
    """Another server at `base_url`, with or without `/v1`. model: None takes the first of its list.

    Raises UserError if the server cannot be reached, or names no model.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    if model is None:
        try:
            models = [one.id async for one in clients.openai(root, api_key).models.list()]
        except Exception as error:  # SDKs raise various errors if there is no such server
            raise UserError(f"{root}/v1/models does not answer ({error}); check --base-url and --api-key") from error
        if not models:
            raise UserError(f"{root}/v1/models is empty; name a model with --model")
        model = models[0]
    return Target(root, api_key, model, REMOTE_MAX_TOKENS)


async def run_cases(
    cases: Sequence[Case],
    target: Target,
    clients: Clients,
    *,
    timeout_s: float,
    until_failure: bool = False,
    on_result: Callable[[CaseResult], object] | None = None,
) -> SuiteReport:
    """Run `cases`, `AT_ONCE` at a time. until_failure: the first failure cancels the others."""
    began_at = time.monotonic()
    results: dict[str, CaseResult] = {}
    slots = asyncio.Semaphore(AT_ONCE)
    tasks: list[asyncio.Task[None]] = []

    async def play_in_turn(case: Case) -> None:
        async with slots:
            results[case.name] = result = await play_one(case, target, clients, timeout_s)
        if on_result is not None:
            on_result(result)
        if until_failure and result.verdict == "failed":
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(play_in_turn(case)) for case in cases]
    in_order = tuple(results[case.name] for case in cases if case.name in results)
    return SuiteReport(in_order, time.monotonic() - began_at)


async def play_one(case: Case, target: Target, clients: Clients, timeout_s: float) -> CaseResult:
    """Run a case; returns its result. Any exception is a failure with a reason."""
    if case.ours is not None and target.server is None:
        return CaseResult(case, "skipped", f"not offered: {case.ours}")
    own = None if target.server is None else target.server.open()
    probe = Probe(target, clients, own, WORDS.get(case.protocol, CHAT))
    failed = partial(CaseResult, case, "failed")
    try:
        async with asyncio.timeout(timeout_s):
            await case.run(probe)
            await probe.check(case.turns)
    except ExpectationError as error:
        return failed(error.what, error.expected, error.got)
    except TimeoutError:
        return failed("the case", f"an end within {timeout_s:g} s", "none")
    except clients.status_errors as raised:
        refused: Any = raised
        return failed("a request", "an answer", f"status {refused.status_code}: {shown(str(refused))}")
    except Exception as error:
        return failed("the case", "its end", f"{type(error).__name__}: {shown(str(error))}")
    finally:
        probe.leave()
    return CaseResult(case, "passed")
