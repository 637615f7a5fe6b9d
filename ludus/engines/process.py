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

import httpx

from ludus.workers.bound import bound

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 0.25
PROBE_TIMEOUT_S = 5.0
GRACE_S = 8.0  # less than a launcher gives the process that waits here


@dataclass(frozen=True, slots=True)
class ServerPlace:
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
    """Added to the environment; a key belongs here, because everybody on a machine sees the words of a command."""
    health: str = "/health"
    """Answers 200 as soon as the server takes requests."""


async def run(
    command: ServerCommand, place: ServerPlace, *, on_ready: Callable[[], object], until: Awaitable[object]
) -> int | None:
    """Serve until the server ends by itself, and return its exit status; or until `until` is over, and return None.

    on_ready: called once, when the server takes requests; it may block for a moment.
    """
    logger.info("server.started command=%s", " ".join(command.argv))
    process = await asyncio.create_subprocess_exec(*bound(command.argv), env={**os.environ, **command.env})
    ended = asyncio.ensure_future(process.wait())
    asked = asyncio.ensure_future(until)
    answering = asyncio.ensure_future(_answering(place.url + command.health))
    try:
        await asyncio.wait((ended, asked, answering), return_when=asyncio.FIRST_COMPLETED)
        if answering.done() and not ended.done():
            answering.result()
            await asyncio.to_thread(on_ready)
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None
    finally:
        answering.cancel()
        asked.cancel()
        await _end(process)
        await asyncio.gather(answering, asked, ended, return_exceptions=True)


async def _answering(url: str) -> None:
    """Returns when the probe is answered with 200."""
    async with httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
        while True:
            with suppress(httpx.HTTPError):  # nobody listens yet, or has no time yet
                if (await http.get(url)).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(PROBE_EVERY_S)


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
