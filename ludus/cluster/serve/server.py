"""A server of training put together: its folder, its key, its models, its jobs, its socket.

Knows: which part is given to which.  Knows not: what any of them does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ludus.cluster.address import ListenAddress
from ludus.cluster.serve.activity import Activity
from ludus.cluster.serve.app import PROBES, Api
from ludus.cluster.serve.host import Host
from ludus.cluster.serve.jobs import JobRunner, Jobs
from ludus.cluster.serve.models import HostedModels
from ludus.cluster.serve.store import JobStore
from ludus.http.keys import check_key, digest, new_key
from ludus.http.server import HttpServer

KEY_VARIABLE = "LUDUS_API_KEY"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes requests."""

    url: str
    new_key: str | None
    """To be shown to a person, once. None: the key is known already."""
    activity: Activity


@asynccontextmanager
async def running(store: JobStore, host: Host, job_runner: JobRunner, address: ListenAddress) -> AsyncIterator[Running]:
    """A server until the block ends; jobs that are not done then are done when the folder is served again.

    host: has the models.  job_runner: does the jobs on them.  address: without a key the one that the folder was served
    with before, or a new one.
    """
    check_address(address)
    key_digest, made = _key(store, address.key)
    jobs = Jobs(store, job_runner)
    models = HostedModels(host, asyncio.get_running_loop())
    app = Api(jobs, models, key_digest).build()
    activity = Activity(app, is_busy=lambda: store.next_job() is not None, ignored=(*PROBES, "/api"))
    http = HttpServer(activity, name="server", beside=models.sweep, is_guarded=True, tls=address.tls)
    url = await asyncio.to_thread(http.start, address.host, address.port)
    working = asyncio.create_task(jobs.work(), name="ludus-jobs")
    try:
        yield Running(url, made, activity)
    finally:
        jobs.end_following()
        await asyncio.to_thread(http.stop)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def check_address(address: ListenAddress) -> None:
    """Raises UserError if strangers could use the server, or guess its key."""
    check_key("a server", address.host, address.key, variable=KEY_VARIABLE)


def _key(store: JobStore, given: str | None) -> tuple[bytes, str | None]:
    """The digest of the key, and the key itself if it was made here."""
    known = store.key_digest
    if given is None and known is not None:
        return known, None
    key = new_key() if given is None else given
    store.set_key_digest(digest(key))
    return digest(key), key if given is None else None
