"""What a kind of engine is made of: how it is opened in this process, or started and spoken to as a server.

Knows: the shape of either.  Knows not: which kinds there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ludus.engines.base import Engine
from ludus.engines.http.client import HttpEngine
from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.settings import EngineSettings, WeightRoute
from ludus.import_strings import import_object
from ludus.models.settings import ModelSettings

WITHOUT_FILES: tuple[WeightRoute, ...] = ("nccl", "ipc")
"""Ways of weights that need no files."""
FILES: tuple[WeightRoute, ...] = ("shared_memory", "disk")


@dataclass(frozen=True, slots=True)
class LocalKind:
    """An engine in this process, on the tensors that are trained."""

    open: Callable[..., Engine]
    """(model, tokenizer, settings, lease=…, seed=…): one replica."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """Engines that are servers."""

    connect: Callable[..., HttpEngine]
    """(url, tokenizer, api_key=…): the engine behind a URL; blocks until it has answered."""
    command: Callable[[Any, ModelSettings, ReplicaAddress], ServerCommand] | None = None
    """(settings, model, address): what starts one. None: Ludus cannot start this kind, only use it."""
    delivery: Callable[..., Mapping[str, Any]] | None = None
    """(settings, files): what `connect` is given besides, so that new weights reach the server by these files, or for
    nccl and ipc without. None: they need nothing."""
    routes: tuple[WeightRoute, ...] = FILES
    """Ways of weights to such a server, besides `auto` and, where adapters are trained, `lora`."""


def kind_of(settings: EngineSettings) -> LocalKind | ServerKind:
    """What these settings are for, imported now."""
    kind: LocalKind | ServerKind = import_object(settings.implementation)
    return kind
