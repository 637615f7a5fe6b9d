"""Engines that are servers of their own: each kind's command, and its client.

Knows: which kind is started how and spoken to how.  Knows not: where their processes are placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.http.ludus import LudusEngine
from ludus.engines.http.vllm import VllmEngine
from ludus.engines.process import ServerCommand, ServerPlace
from ludus.engines.serving.command import engine_command
from ludus.engines.settings import EngineSettings
from ludus.errors import ConfigError
from ludus.model.settings import ModelSettings
from ludus.text.tokenizer import Tokenizer

KEY = "key"
"""In the task of an engine's process: the key that its server wants."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server."""

    connect: Callable[..., Engine]
    """(url, tokenizer, api_key=…): the engine behind a URL; blocks until it has answered."""
    command: Callable[[EngineSettings, ModelSettings, ServerPlace], ServerCommand] | None = None
    """What starts one. None: Ludus cannot start this kind, only use it."""


KINDS: Mapping[str, ServerKind] = {
    "server": ServerKind(LudusEngine.connect, engine_command),
    "vllm": ServerKind(VllmEngine.connect),
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


async def connect(config: Config, url: str, tokenizer: Tokenizer, key: str | None) -> Engine:
    """The run's engine behind `url`. Raises UserError or BackendError where it cannot be used."""
    kind = server_kind(config.engine.kind)
    return await asyncio.to_thread(kind.connect, url, tokenizer, api_key=key)
