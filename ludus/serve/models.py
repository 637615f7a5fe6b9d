"""The models of a server: loaded when they are needed, answering below their own path.

Knows: the backend and the loop that it runs on.  Knows not: jobs, URLs.
Invariant: a model is loaded once, however many ask for it at once; who waits for one does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.api.backends.base import Backend, Inference, TrainableSpec
from ludus.api.backends.wire import ModelView, RegisterModel
from ludus.serve.work import Hosted

PATIENCE_S = 20.0  # less than proxies wait for the first byte of an answer, commonly 30 s or more
ResultT = TypeVar("ResultT")


class ServableBackend(Backend, Protocol):
    """A backend whose models answer in this process."""

    def app(self, model: TrainableSpec) -> ASGIApp:
        """The gateway of a registered model: it takes the requests that its `Inference` says how to send."""


class BackendModels:
    """`Models` of a backend. Called on the server's loop; the backend is called on its own."""

    def __init__(
        self, backend: ServableBackend, loop: asyncio.AbstractEventLoop, *, patience_s: float = PATIENCE_S
    ) -> None:
        """patience_s: after so long a model that is being loaded is said to be."""
        self._backend = backend
        self._loop = loop
        self._patience_s = patience_s
        self._loading: dict[tuple[str, str], asyncio.Future[Inference]] = {}

    def __repr__(self) -> str:
        return f"BackendModels({self._backend!r}, loaded={len(self._loading)})"

    async def ready(self, model: RegisterModel) -> ModelView:
        loading = self._load(model)
        await asyncio.wait({loading}, timeout=self._patience_s)
        if loading.done():
            loading.result()  # raises what loading it raised
        return await self.look(model)

    async def look(self, model: RegisterModel) -> ModelView:
        inference = self._inference(model)
        return ModelView(
            project=model.project,
            name=model.name,
            base_model=model.base_model,
            config=model.config,
            step=None if inference is None else await self._there(self._backend.get_step(Hosted.of(model))),
            inference_name=model.name if inference is None else inference.inference_name,
            inference_path=f"/m/{model.project}/{model.name}/v1",
        )

    async def keep_checkpoints(self, model: RegisterModel, steps: frozenset[int]) -> ModelView:
        await asyncio.shield(self._load(model))
        await self._there(self._backend.delete_checkpoints(Hosted.of(model), steps))
        return await self.look(model)

    async def gateway(self, model: RegisterModel) -> ASGIApp:
        inference = await asyncio.shield(self._load(model))
        return _with_key(self._backend.app(Hosted.of(model)), inference.api_key)

    def _inference(self, model: RegisterModel) -> Inference | None:
        """None: the model is not loaded."""
        loading = self._loading.get((model.project, model.name))
        if loading is None or not loading.done() or loading.exception() is not None:
            return None
        return loading.result()

    def _load(self, model: RegisterModel) -> asyncio.Future[Inference]:
        name = (model.project, model.name)
        loading = self._loading.get(name)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.ensure_future(self._there(self._prepare(Hosted.of(model))))
            self._loading[name] = loading
        return loading

    async def _prepare(self, model: Hosted) -> Inference:
        await self._backend.register(model)
        return await self._backend.prepare(model)

    async def _there(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of a call that runs on the backend's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))


def _with_key(app: ASGIApp, api_key: str) -> ASGIApp:
    """`app`, which sees its own key in place of the server's."""

    async def send_on(scope: Scope, receive: Receive, send: Send) -> None:
        others = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", b"x-api-key")]
        await app({**scope, "headers": [*others, (b"authorization", f"Bearer {api_key}".encode())]}, receive, send)

    return send_on
