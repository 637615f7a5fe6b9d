"""The models of a server: loaded when they are needed, answering below their own path.

Knows: the host and the loop that it runs on.  Knows not: jobs, URLs.
Invariant: a model is loaded once, however many ask for it at once; who waits for one does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from ludus.cluster.serve.gateways import ModelGateway
from ludus.cluster.serve.host import Host
from ludus.cluster.serve.wire import ModelView, RegisterModel
from ludus.errors import LudusError

logger = logging.getLogger(__name__)

PATIENCE_S = 20.0  # less than proxies wait for the first byte of an answer, commonly 30 s or more
SECONDS_BETWEEN_SWEEPS = 30.0  # a session may be idle for an hour; half a minute more is nothing
ResultT = TypeVar("ResultT")


class HostedModels:
    """What a server knows of its models beyond their jobs. Called on its loop; the host is called on its own."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, *, patience_s: float = PATIENCE_S) -> None:
        """patience_s: after so long a model that is being loaded is said to be."""
        self._host = host
        self._loop = loop
        self._patience_s = patience_s
        self._loading: dict[tuple[str, str], asyncio.Future[ModelGateway]] = {}

    def __repr__(self) -> str:
        return f"HostedModels({self._host!r}, loaded={len(self._loading)})"

    async def ready(self, model: RegisterModel) -> ModelView:
        """The model, loaded; it is not yet if that takes longer than a client should wait for an answer."""
        loading = self._load(model)
        await asyncio.wait({loading}, timeout=self._patience_s)
        if loading.done():
            loading.result()  # raises what loading it raised
        return await self.view(model)

    async def view(self, model: RegisterModel) -> ModelView:
        """The model as it is; nothing is loaded."""
        loading = self._loading.get((model.project, model.name))
        is_loaded = loading is not None and loading.done() and loading.exception() is None
        return ModelView.of(model, await self._there(self._host.get_step(model)) if is_loaded else None)

    async def keep_checkpoints(self, model: RegisterModel, steps: frozenset[int]) -> ModelView:
        await asyncio.shield(self._load(model))
        await self._there(self._host.delete_checkpoints(model, steps))
        return await self.view(model)

    async def gateway(self, model: RegisterModel) -> ModelGateway:
        """The model's, which is loaded when this returns."""
        return await asyncio.shield(self._load(model))

    async def sweep(self) -> None:
        """Ends sessions that are idle, until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_SWEEPS)
            for loading in list(self._loading.values()):
                if loading.done() and loading.exception() is None:
                    try:
                        await loading.result().episodes.expire()
                    except LudusError:  # a disk that is full now: the next time may do
                        logger.exception("sessions.end_failed")

    def _load(self, model: RegisterModel) -> asyncio.Future[ModelGateway]:
        name = (model.project, model.name)
        loading = self._loading.get(name)
        if loading is None or (loading.done() and loading.exception() is not None):

            async def load() -> ModelGateway:
                return ModelGateway((await self._there(self._host.hosted(model))).episodes)

            loading = self._loading[name] = asyncio.ensure_future(load())
        return loading

    async def _there(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of a call that runs on the host's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
