"""`LocalBackend`: serves and trains models in this process.

Knows: models by project and name.  Knows not: how a model is trained, tokens.
Invariant: a model is open once in this process, whoever asks for it: the last backend takes it over.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Self

from ludus.api.hosted import HostedModel, fork_checkpoint, saved_model, trained_steps
from ludus.compat.art.backends import (
    AnyTraining,
    Backend,
    ForkArguments,
    InferenceEndpoint,
    OnProgress,
    TrainableSpec,
    TrainArguments,
    TrainResult,
    refuse_bucket,
)
from ludus.compat.art.configs import check_config, default_config, model_config
from ludus.compat.art.served import ServedModel
from ludus.compat.config import Config
from ludus.compat.members import with_members
from ludus.episodes.keys import SessionKeys
from ludus.errors import ConfigError
from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import InProcessTransport

logger = logging.getLogger(__name__)

DEFAULT_PATH = "runs"
_OPEN: dict[Path, tuple[LocalBackend, Path]] = {}
"""The backend that has a model open, with the name of the model's folder there, by that folder. A notebook's cell that
is run again makes another backend."""


@with_members("art", "local.backend.LocalBackend")
class LocalBackend(Backend):
    """A `Backend` in this process."""

    def __init__(
        self,
        *,
        in_process: bool = True,
        path: Path | str | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        config: Config | None = None,
    ) -> None:
        """path: folder of the projects. None: `runs`.

        config: settings of models, engine, trainer and sampling. None: ART's defaults: LoRA, its loss and optimizer.
        Raises ConfigError for keys that have no effect here.
        """
        del in_process, gpu_cost_per_hour_usd
        self.path = Path(DEFAULT_PATH if path is None else path)
        self._config = default_config() if config is None else check_config(config)
        self._server: GatewayServer | None = None
        """None: no model has been registered."""
        self._models: dict[Path, asyncio.Future[ServedModel]] = {}
        """By folder; for a model that could not be opened, the future has the error."""
        self._stack = AsyncExitStack()
        """Closes the models and their server."""
        self._open_models: dict[Path, AsyncExitStack] = {}
        """Closes one model, by folder."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the models are open. None: no model has been registered."""
        self._at_end: asyncio.Task[None] | None = None
        """A task that closes the backend when the event loop ends. None: nothing is open."""

    def __repr__(self) -> str:
        return f"LocalBackend({str(self.path)!r}, models={len(self._models)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing, as closing is async: the backend is closed when the event loop ends."""

    async def register(self, model: TrainableSpec) -> None:
        await self.hosted(model)

    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        served = await self.hosted(model)
        assert self._server is not None, "no model was registered"
        server = self._server
        return InferenceEndpoint(
            base_url=f"{server.base_url}/v1",
            key=served.key,
            inference_name=model.name,
            transport=lambda http: InProcessTransport(server, http),
        )

    async def hosted(self, model: TrainableSpec) -> ServedModel:
        """Register the model; returns the served model."""
        folder = self._folder(model.project, model.name)
        opening = self._models.get(folder)
        if opening is None or (opening.done() and opening.exception() is not None):
            self._models[folder] = opening = asyncio.ensure_future(self._open(model, folder))
        return await asyncio.shield(opening)

    async def _train(
        self, model: TrainableSpec, asked: AnyTraining, on_progress: OnProgress, idempotency_key: str | None
    ) -> TrainResult:
        if idempotency_key is not None:
            raise ConfigError("idempotency_key cannot act: a LocalBackend takes every call as a step of its own")
        served = await self.hosted(model)
        if isinstance(asked, TrainArguments):
            return await served.train(asked, on_progress)
        return await served.train_sft(asked, on_progress)

    async def get_step(self, model: TrainableSpec) -> int:
        folder = self._folder(model.project, model.name)
        opening = self._models.get(folder)
        return trained_steps(folder) if opening is None else (await asyncio.shield(opening)).model.step

    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        hosted = (await self.hosted(model)).model
        await asyncio.to_thread(hosted.keep_checkpoints, frozenset(keep))

    async def _fork(self, model: TrainableSpec, asked: ForkArguments) -> int:
        source = self._folder(asked.from_project or model.project, asked.from_model)
        folder = self._folder(model.project, model.name)
        return await asyncio.to_thread(
            fork_checkpoint, source, folder, model.base_model, not_after_step=asked.not_after_step
        )

    async def _experimental_pull_model_checkpoint(
        self,
        model: TrainableSpec,
        *,
        step: int | Literal["latest"] | None = None,
        local_path: str | None = None,
        s3_bucket: str | None = None,
        **_: Any,
    ) -> str:
        """The folder of a step's saved weights, copied to `local_path` if that is given.

        step: None or "latest": the newest.  Raises UserError if there are none, ConfigError if a bucket is given.
        """
        refuse_bucket("s3_bucket", s3_bucket)
        wanted = None if step == "latest" else step
        found = await asyncio.to_thread(saved_model, self._folder(model.project, model.name), wanted)
        if local_path is not None:
            await asyncio.to_thread(shutil.copytree, found, local_path, dirs_exist_ok=True)
        return str(found) if local_path is None else local_path

    async def close(self) -> None:
        if opening := [each for each in self._models.values() if not each.done()]:
            await asyncio.wait(opening)
        for folder in self._models:
            _OPEN.pop(_place(folder), None)
        self._models, self._open_models, self._server = {}, {}, None
        if self._at_end is not None and self._at_end is not asyncio.current_task():
            self._at_end.cancel()
        self._at_end = None
        await self._stack.aclose()

    # ---- inside

    async def _close_at_end(self) -> None:
        # For scripts that close nothing: at the end of the event loop, tasks are cancelled before async generators
        # close.
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._at_end is not None:
                await self.close()

    def _folder(self, project: str, name: str) -> Path:
        return self.path / project / "models" / name

    async def _take_over(self, folder: Path) -> None:
        """Have another backend of this process and event loop close the model, if it has it open."""
        other, its_folder = _OPEN.get(_place(folder), (self, folder))
        if other is not self and other._loop is asyncio.get_running_loop():
            logger.warning(
                "%s was open in another LocalBackend of this process, as when a notebook's cell is run again; it is "
                "closed there, and this one goes on",
                folder,
            )
            await other._give_up(its_folder)
        _OPEN[_place(folder)] = self, folder

    async def _give_up(self, folder: Path) -> None:
        opening = self._models.pop(folder)
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            async with opening.result().model.lock:  # a step that is being taken is finished
                await self._open_models.pop(folder).aclose()

    async def _open(self, model: TrainableSpec, folder: Path) -> ServedModel:
        await self._take_over(folder)
        self._loop = asyncio.get_running_loop()
        where = (str(folder.parent), folder.name)
        config = model_config(self._config, base_model=model.base_model, own=model.internal_config, folder=where)
        if self._at_end is None:
            self._at_end = asyncio.ensure_future(self._close_at_end())
        if self._server is None:
            self._server = server = GatewayServer(SessionKeys())
            await asyncio.to_thread(server.start)
            self._stack.callback(server.stop)
        logger.info("model.opening project=%s name=%s base_model=%s", model.project, model.name, model.base_model)
        async with AsyncExitStack() as stack:
            hosted = await HostedModel.open(config, stack, base_name=model.base_model)
            served = ServedModel(hosted, self._server)
            stack.push_async_callback(served.close)
            self._open_models[folder] = closing = stack.pop_all()
            self._stack.push_async_exit(closing)
        logger.info("model.opened project=%s name=%s step=%d", model.project, model.name, served.model.step)
        return served


def _place(folder: Path) -> Path:
    """The folder by one name, however it is given."""
    return folder.resolve()
