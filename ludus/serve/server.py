"""A server of training put together: its folder, its key, its backend, its jobs, its socket.

Knows: which part is given to which.  Knows not: what any of them does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ludus.errors import UserError
from ludus.http.keys import MIN_ADMIN_KEY_CHARS, digest, is_loopback, new_key
from ludus.http.server import HttpServer
from ludus.serve.app import Api
from ludus.serve.jobs import Jobs
from ludus.serve.models import BackendModels
from ludus.serve.store import JobStore
from ludus.serve.work import BackendWorkshop, ServableBackend

KEY_VARIABLE = "LUDUS_API_KEY"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and who may use it."""

    host: str
    port: int
    """0: any free one."""
    key: str | None
    """None: the one that the folder was served with before, or a new one."""

    def check(self) -> None:
        """Raises UserError if strangers could use the server, or guess its key."""
        if self.key is None and not is_loopback(self.host):
            raise UserError(
                f"a server on {self.host} lets other machines in, and then the key must be yours: set {KEY_VARIABLE} "
                "(or --api-key), or listen on 127.0.0.1"
            )
        if self.key is not None and len(self.key) < MIN_ADMIN_KEY_CHARS:
            raise UserError(
                f"the key has {len(self.key)} characters; {MIN_ADMIN_KEY_CHARS} or more are hard to guess, as those of "
                "`openssl rand -hex 24`"
            )


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes requests."""

    url: str
    new_key: str | None
    """To be told to a person, once. None: the key is known already."""


@asynccontextmanager
async def running(store: JobStore, backend: ServableBackend, address: Address) -> AsyncIterator[Running]:
    """A server until the block ends; jobs that are not done then are done when the folder is served again."""
    address.check()
    key_digest, made = _key(store, address.key)
    jobs = Jobs(store, BackendWorkshop(backend))
    models = BackendModels(backend, asyncio.get_running_loop())
    http = HttpServer(Api(jobs, models, key_digest).build(), name="server", beside=models.sweep)
    url = await asyncio.to_thread(http.start, address.host, address.port)
    working = asyncio.create_task(jobs.work(), name="ludus-jobs")
    try:
        yield Running(url, made)
    finally:
        jobs.end_following()
        await asyncio.to_thread(http.stop)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _key(store: JobStore, given: str | None) -> tuple[bytes, str | None]:
    """The digest of the key, and the key itself if it was made here."""
    known = store.key_digest
    if given is None and known is not None:
        return known, None
    key = new_key() if given is None else given
    store.set_key_digest(digest(key))
    return digest(key), key if given is None else None
