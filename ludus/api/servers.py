"""Engines that are servers: the command that starts each kind, and the client that uses it.

Knows: how each kind is started and called.  Knows not: where their processes are placed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.kind import WITHOUT_FILES, ServerKind, kind_of
from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.settings import ServerSettings, WeightRoute
from ludus.engines.weights import (
    ADAPTERS_AT_ONCE,
    HEADER_BYTES,
    SHARED_MEMORY,
    WHOLE_MODELS_AT_ONCE,
    WeightFiles,
)
from ludus.errors import ConfigError, UserError
from ludus.processes.files import free_bytes
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

logger = logging.getLogger(__name__)

GIB = 2**30
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY = "key"
"""Field in the task of an engine's process: the key that its server requires."""


def server_of(config: Config) -> tuple[ServerKind, ServerSettings]:
    """The configured kind of server and its settings. Raises ConfigError if the engine is no server."""
    kind, settings = kind_of(config.engine), config.engine
    if not isinstance(kind, ServerKind) or not isinstance(settings, ServerSettings):
        raise ConfigError(f"engine.kind={settings.kind!r} is no server")
    return kind, settings


def server_command(config: Config, address: ReplicaAddress) -> ServerCommand:
    """The command that starts a replica at `address`. Raises ConfigError if Ludus cannot start this kind."""
    kind, settings = server_of(config)
    if kind.command is None:
        raise ConfigError(f"engine.kind={settings.kind!r} needs engine.urls, the servers that run already")
    return kind.command(settings, config.model, address)


async def connect(config: Config, url: str, tokenizer: Tokenizer, key: str | None, files: WeightFiles | None) -> Engine:
    """The run's engine behind `url`. Raises UserError or BackendError if it cannot be used, or cannot sample as the run
    is configured to.

    files: where the server reads published weights, if its kind does that.
    """
    kind, settings = server_of(config)
    is_sent = files is None and settings.weights not in WITHOUT_FILES
    delivery = {} if is_sent or kind.delivery is None else kind.delivery(settings, files)
    engine = await asyncio.to_thread(kind.connect, url, tokenizer, api_key=key, **delivery)
    try:
        for generation in (config.gconfig, config.eval_generation):
            engine.protocol.check(Call("check", "check", (), generation.sampling()))
    except UserError:
        await engine.close()
        raise
    return engine


def open_files(config: Config, model: LoadedModel) -> WeightFiles | None:
    """The files in which the run's servers find new weights; close them with the run. None: weights are not sent by
    file.

    Raises ConfigError if weights cannot be sent as `engine.weights` says.
    """
    kind, engine = server_of(config)
    known: tuple[WeightRoute, ...] = ("auto", *kind.routes, *(("lora",) if model.adapter is not None else ()))
    if engine.weights not in known:
        hint = "" if model.adapter is not None else " and, with model.lora, lora"
        raise ConfigError(
            f"engine.weights={engine.weights!r} is no way to a {engine.kind}; there are {', '.join(known)}{hint}"
        )
    if engine.weights in WITHOUT_FILES and model.adapter is not None:
        raise ConfigError(f"engine.weights={engine.weights!r} is for whole models; adapters are sent by lora or disk")
    if kind.delivery is None or engine.weights in WITHOUT_FILES:
        return None
    # Whether the run's engines are on this machine, and can share its memory.
    hosts = [urlsplit(url).hostname for url in engine.urls]
    is_near = all(host in _LOOPBACK for host in hosts) if hosts else config.scheduler.type == "local"
    if engine.weights == "stream" or ("stream" in kind.routes and engine.weights in ("auto", "lora") and not is_near):
        return None
    num_bytes, folder = published_bytes(model), (config.folder / "weights").absolute()
    if engine.weights == "shared_memory" or (engine.weights != "disk" and is_near):
        free = free_bytes(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else num_bytes
        if free >= num_bytes:
            return WeightFiles.in_shared_memory(adapter_config=model.adapter_config)
        lacking = (
            f"{SHARED_MEMORY} has {free / GIB:.2f} GiB free, and published weights take {num_bytes / GIB:.2f} there: "
            "start the container with more of it, such as `docker run --shm-size=…` or `--ipc=host`"
        )
        if engine.weights == "shared_memory":
            raise UserError(f"engine.weights=shared_memory cannot act: {lacking}; or set engine.weights=disk")
        logger.warning("weights are published through %s instead of memory: %s", folder, lacking)
    if (free := free_bytes(folder)) < num_bytes:
        raise UserError(
            f"published weights take {num_bytes / GIB:.2f} GiB, and {config.run_root} has {free / GIB:.2f} free: free "
            "some space, or set run_root to a folder of a larger disk"
        )
    return WeightFiles(folder, adapter_config=model.adapter_config)


def published_bytes(model: LoadedModel) -> int:
    """Bytes of the versions of the weights that are in files at the same time."""
    num_versions = ADAPTERS_AT_ONCE if model.adapter_config is not None else WHOLE_MODELS_AT_ONCE
    return num_versions * (HEADER_BYTES + sum(parameter.nbytes for parameter in model.trainable.values()))
