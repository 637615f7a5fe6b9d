"""Engines that are servers of their own: each kind's command, and its client.

Knows: which kind is started how and spoken to how.  Knows not: where their processes are placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.http.client import HttpEngine
from ludus.engines.http.ludus import LudusEngine, ludus_delivery
from ludus.engines.http.sglang import SglangEngine, sglang_delivery
from ludus.engines.http.vllm import VllmEngine
from ludus.engines.http.vllm_command import vllm_command
from ludus.engines.http.vllm_delivery import ROUTES, WITHOUT_FILES, vllm_delivery
from ludus.engines.process import ServerCommand, ServerPlace
from ludus.engines.serving.command import engine_command
from ludus.engines.settings import EngineSettings, WeightRoute
from ludus.engines.weights import WeightFiles
from ludus.errors import ConfigError, UserError
from ludus.models.settings import ModelSettings
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

_FILES: tuple[WeightRoute, ...] = ("shared_memory", "disk")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY = "key"
"""In the task of an engine's process: the key that its server wants."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server."""

    connect: Callable[..., HttpEngine]
    """(url, tokenizer, api_key=…): the engine behind a URL; blocks until it has answered."""
    command: Callable[[EngineSettings, ModelSettings, ServerPlace], ServerCommand] | None = None
    """What starts one. None: Ludus cannot start this kind, only use it."""
    delivery: Callable[..., Mapping[str, Any]] | None = None
    """(settings, files): what `connect` is told besides, so that new weights reach the server by these files, or for
    nccl and ipc without. None: they need nothing."""
    routes: tuple[WeightRoute, ...] = _FILES
    """Ways of weights to such a server, besides `auto` and, where adapters are trained, `lora`."""


KINDS: Mapping[str, ServerKind] = {
    "server": ServerKind(LudusEngine.connect, engine_command, ludus_delivery, (*_FILES, "stream")),
    "sglang": ServerKind(SglangEngine.connect, delivery=sglang_delivery),
    "vllm": ServerKind(VllmEngine.connect, vllm_command, vllm_delivery, ROUTES),
}


def server_kind(name: str) -> ServerKind:
    """Raises ConfigError for a kind that is no server."""
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigError(f"engine.kind={name!r} is no server; there are {', '.join(sorted(KINDS))}")
    return kind


def server_command(config: Config, place: ServerPlace) -> ServerCommand:
    """What starts a replica of the run's engine at `place`. Raises ConfigError if Ludus cannot start this kind."""
    kind = server_kind(config.engine.kind)
    if kind.command is None:
        raise ConfigError(f"engine.kind={config.engine.kind!r} needs engine.urls, the servers that run already")
    return kind.command(config.engine, config.model, place)


async def connect(config: Config, url: str, tokenizer: Tokenizer, key: str | None, files: WeightFiles | None) -> Engine:
    """The run's engine behind `url`. Raises UserError or BackendError where it cannot be used, or not with the sampling
    that the run asks for.

    files: of the run's weights, where its kind of server takes them from files.
    """
    kind = server_kind(config.engine.kind)
    is_sent = files is None and config.engine.weights not in WITHOUT_FILES
    delivery = {} if is_sent or kind.delivery is None else kind.delivery(config.engine, files)
    engine = await asyncio.to_thread(kind.connect, url, tokenizer, api_key=key, **delivery)
    try:
        for generation in (config.gconfig, config.eval_generation):
            engine.wire.check(Call("check", "check", (), generation.sampling()))
    except UserError:
        await engine.close()
        raise
    return engine


def open_files(config: Config, model: LoadedModel) -> WeightFiles | None:
    """Where the run's servers find new weights, to be closed with the run. None: they take them in another way.

    Raises ConfigError if weights cannot travel as the configuration says.
    """
    engine = config.engine
    kind = server_kind(engine.kind)
    known: tuple[WeightRoute, ...] = ("auto", *kind.routes, *(("lora",) if model.adapter is not None else ()))
    if engine.weights not in known:
        hint = "" if model.adapter is not None else " and, with model.lora, lora"
        raise ConfigError(
            f"engine.weights={engine.weights!r} is no way to a {engine.kind}; there are {', '.join(known)}{hint}"
        )
    if engine.weights in WITHOUT_FILES and model.adapter is not None:
        raise ConfigError(f"engine.weights={engine.weights!r} is for whole models; adapters travel by lora or disk")
    if kind.delivery is None or engine.weights in WITHOUT_FILES:
        return None
    is_near = _is_near(config)
    if engine.weights == "stream" or ("stream" in kind.routes and engine.weights in ("auto", "lora") and not is_near):
        return None
    if engine.weights == "shared_memory" or (engine.weights != "disk" and is_near):
        return WeightFiles.in_shared_memory(adapter_config=model.adapter_config)
    return WeightFiles((config.folder / "weights").absolute(), adapter_config=model.adapter_config)


def _is_near(config: Config) -> bool:
    """Whether the run's engines share the memory of this machine."""
    if config.engine.urls:
        return all(urlsplit(url).hostname in _LOOPBACK for url in config.engine.urls)
    return config.scheduler.type == "local"
