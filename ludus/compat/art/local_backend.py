"""`LocalBackend`: models that live and are trained in this process.

Knows: models by project and name.  Knows not: how a model is trained, tokens.
Invariant: a model is opened once however many ask for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ludus.compat.art.backends import (
    InferenceEndpoint,
    OnProgress,
    TrainableSpec,
    TrainConfig,
    TrainProgress,
    TrainResult,
    TrainSFTConfig,
    train_config,
)
from ludus.compat.art.configs import check_config, default_config, model_config
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.hosted import HostedModel, check_base, copy_checkpoint
from ludus.compat.art.served import ServedModel
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.config import Config
from ludus.episodes.keys import SessionKeys
from ludus.errors import ConfigError, UserError
from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import InProcessTransport
from ludus.loop.checkpoint import checkpoints, latest_checkpoint

logger = logging.getLogger(__name__)

DEFAULT_PATH = "runs"


class LocalBackend:
    """A `Backend` in this process. Use as a context manager, or close it; what is trained is saved either way."""

    def __init__(
        self, *, path: Path | str | None = None, config: Config | None = None, in_process: bool = True
    ) -> None:
        """path: where projects lie. None: `runs`.

        config: what models, engine, trainer and sampling are like. None: as ART's: LoRA, its loss and learning rate.
        Raises ConfigError for keys that cannot act here.
        """
        if not in_process:
            raise ConfigError(
                "in_process=False cannot act: a LocalBackend is in this process. For one of its own start "
                "`ludus serve` and pass ServerBackend(base_url)"
            )
        self.path = Path(DEFAULT_PATH if path is None else path)
        self._config = default_config() if config is None else check_config(config)
        self._server: GatewayServer | None = None
        """None: no model has been registered."""
        self._models: dict[tuple[str, str], asyncio.Future[ServedModel]] = {}

    def __repr__(self) -> str:
        return f"LocalBackend({str(self.path)!r}, models={len(self._models)})"

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def register(self, model: TrainableSpec) -> None:
        await self._served(model)

    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        served = await self._served(model)
        assert self._server is not None, "a model is served by a server"
        server = self._server
        return InferenceEndpoint(
            base_url=f"{server.base_url}/v1",
            api_key=served.outside_key,
            inference_name=model.name,
            headers=served.headers,
            transport=lambda http: InProcessTransport(server, http),
        )

    async def hosted(self, model: TrainableSpec) -> HostedModel:
        """The model itself, registered."""
        return (await self._served(model)).hosted

    async def train(
        self,
        model: TrainableSpec,
        trajectory_groups: Sequence[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> TrainResult:
        asked = train_config(config, options)
        return await (await self.hosted(model)).train(list(trajectory_groups), asked, on_progress or _ignore)

    async def train_sft(
        self,
        model: TrainableSpec,
        trajectories: Sequence[Trajectory],
        config: TrainSFTConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> TrainResult:
        hosted = await self.hosted(model)
        return await hosted.train_sft(list(trajectories), config or TrainSFTConfig(), on_progress or _ignore)

    async def get_step(self, model: TrainableSpec) -> int:
        opened = self._models.get(_key(model))
        if opened is not None:
            return (await opened).hosted.step
        found = latest_checkpoint(self._folder(model.project, model.name) / "checkpoints")
        return 0 if found is None else found.progress.step

    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        hosted = await self.hosted(model)
        await asyncio.to_thread(hosted.keep_checkpoints, frozenset(keep))

    async def fork(
        self,
        model: TrainableSpec,
        from_model: str,
        *,
        from_project: str | None = None,
        not_after_step: int | None = None,
    ) -> int:
        source, folder = (
            self._folder(from_project or model.project, from_model),
            self._folder(model.project, model.name),
        )
        if _key(model) in self._models or latest_checkpoint(folder / "checkpoints") is not None:
            raise UserError(f"{model.name!r} has begun already; fork into a new name, before the model is registered")
        check_base(source, model.base_model)
        there = checkpoints(source / "checkpoints")
        fitting = [each for each in there if not_after_step is None or each.progress.step <= not_after_step]
        if not fitting:
            steps = ", ".join(str(each.progress.step) for each in there) or "none"
            bound = "" if not_after_step is None else f" up to step {not_after_step}"
            raise UserError(f"{str(source)!r} has no checkpoint{bound}; it has: {steps}")
        await asyncio.to_thread(copy_checkpoint, fitting[-1], folder)
        return fitting[-1].progress.step

    async def close(self) -> None:
        models, self._models = self._models, {}
        for opened in models.values():
            await (await opened).hosted.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    # ---- inside

    def _folder(self, project: str, name: str) -> Path:
        return self.path / project / "models" / name

    async def _served(self, model: TrainableSpec) -> ServedModel:
        key = _key(model)
        if key not in self._models:
            self._models[key] = asyncio.get_running_loop().create_future()
            try:
                self._models[key].set_result(await self._open(model))
            except BaseException as error:
                opening = self._models.pop(key)
                opening.set_exception(error)
                opening.exception()  # whoever waited has it; nobody need have
                raise
        return await self._models[key]

    async def _open(self, model: TrainableSpec) -> ServedModel:
        folder = self._folder(model.project, model.name)
        config = model_config(
            self._config,
            base_model=model.base_model,
            own=model.internal_config,
            folder=(str(folder.parent), folder.name),
        )
        if self._server is None:
            self._server = GatewayServer(SessionKeys())
            await asyncio.to_thread(self._server.start)
        logger.info("model.opening project=%s name=%s base_model=%s", model.project, model.name, model.base_model)
        hosted = await HostedModel.open(config, model.base_model)
        logger.info("model.opened project=%s name=%s step=%d", model.project, model.name, hosted.step)
        return ServedModel(hosted, self._server)


def _key(model: TrainableSpec) -> tuple[str, str]:
    return model.project, model.name


def _ignore(_: TrainProgress) -> None: ...
