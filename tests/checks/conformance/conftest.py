"""A server of one's own for cases, clients for it, and a report of cases that never ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ludus.checks.conformance.case import Case
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.local_server import WHOLE, LocalServer, ServerParts
from ludus.checks.conformance.run import SuiteReport, local_target, run_cases

PlayOwn = Callable[..., SuiteReport]


@pytest.fixture
def play_own() -> PlayOwn:
    """Runs cases on the local server, put together from other parts if there are any."""

    def run(cases: Sequence[Case], parts: ServerParts = WHOLE, *, timeout_s: float = 60.0) -> SuiteReport:
        async def main() -> SuiteReport:
            async with Clients(timeout_s) as clients:
                with LocalServer(parts) as server:
                    return await run_cases(cases, local_target(server), clients, timeout_s=timeout_s)

        return asyncio.run(main())

    return run
