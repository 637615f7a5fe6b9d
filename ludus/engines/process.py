"""A server of tokens as a process of ours: started, waited for until it answers, and ended.

Knows: commands, ports, probes over HTTP.  Knows not: which engine it is; each kind makes its own command.
Invariant: when `run` returns, the server has ended; it ends too if this process is killed (on Linux).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from ludus.errors import BackendError
from ludus.processes.end_with_parent import end_with_parent

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 0.25
PROBE_TIMEOUT_S = 5.0
GRACE_S = 8.0  # less than a launcher gives the process that waits here
# Of a server that is ready. It may be busy for seconds, such as with new weights; after a minute it hangs.
WATCH_S = 5.0
MISSED_PROBES = 6
"""So many in a row without an answer, each after a pause as long as its timeout. Not timed: see `cluster/clock.py`."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where one replica of the engine serves, and who may use it."""

    host: str
    port: int
    key: str
    """The bearer key that it wants."""
    seed: int
    """The run's. Replicas differ by `index`."""
    index: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What starts a server."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the environment; a key belongs here, because everybody on a machine sees the arguments of a command."""
    health: str = "/health"
    """Answers 200 as soon as the server takes requests."""


async def run(
    command: ServerCommand,
    address: ReplicaAddress,
    *,
    on_ready: Callable[[], object],
    until: Awaitable[object],
    watch_s: float = WATCH_S,
) -> int | None:
    """Serve until the server ends by itself, and return its exit status; or until `until` is over, and return None.

    on_ready: called once, when the server takes requests; it may block for a moment.
    watch_s: between two probes of a server that is ready, and how long each may take.
    Raises BackendError if the server was ready and answers no more.
    """
    url = address.url + command.health
    logger.info("server.started command=%s", " ".join(command.argv))
    process = await asyncio.create_subprocess_exec(*end_with_parent(command.argv), env={**os.environ, **command.env})
    ended = asyncio.ensure_future(process.wait())
    asked = asyncio.ensure_future(until)
    answering = asyncio.ensure_future(_answering(url))
    waited_for: set[asyncio.Future[Any]] = {ended, asked, answering}
    try:
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if answering.done() and not ended.done():
            answering.result()
            await asyncio.to_thread(on_ready)
            silent = asyncio.ensure_future(_silent(url, watch_s))
            waited_for.add(silent)
            await asyncio.wait((ended, asked, silent), return_when=asyncio.FIRST_COMPLETED)
            if silent.done() and not (ended.done() or asked.done()):
                silent.result()
                raise BackendError(f"the server hangs: {MISSED_PROBES} probes of {url} in a row were not answered")
        return ended.result() if ended.done() else None
    finally:
        for task in waited_for - {ended}:
            task.cancel()
        await _end(process)
        await asyncio.gather(*waited_for, return_exceptions=True)


async def _answering(url: str) -> None:
    """Returns when the probe is answered with 200."""
    async with httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
        while True:
            if await _is_answered(http, url):
                return
            await asyncio.sleep(PROBE_EVERY_S)


async def _silent(url: str, watch_s: float) -> None:
    """Returns when so many probes in a row were not answered with 200 that the server must hang."""
    num_missed = 0
    async with httpx.AsyncClient(timeout=watch_s, trust_env=False) as http:
        while num_missed < MISSED_PROBES:
            await asyncio.sleep(watch_s)
            num_missed = 0 if await _is_answered(http, url) else num_missed + 1


async def _is_answered(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:  # nobody listens, or has time now
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
