"""The engines of a run, whichever kind they are, as the one engine that the recorder asks.

Knows: which kind is built how, and from which settings.  Knows not: how any of them samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.http.vllm import VllmEngine
from ludus.engines.router import RoutedEngine, route
from ludus.errors import ConfigError
from ludus.lease import ComputeLease
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.model.load import LoadedModel


@asynccontextmanager
async def open_engines(
    config: Config, model: LoadedModel, tokenizer: Tokenizer, lease: ComputeLease
) -> AsyncIterator[Engine]:
    """The engine that samples for the run, until the block ends. lease: guards the weights of this process.

    Raises UserError or BackendError where an engine cannot be reached, or has another model.
    """
    async with AsyncExitStack() as stack:
        if config.engine.kind == "local":
            engines = _in_this_process(config, model, tokenizer, lease)
        else:
            engines = await _attached(stack, config, tokenizer)
        engine = route(engines, tokenizer, seed=config.seed)
        stack.push_async_callback(engine.close)
        if isinstance(engine, RoutedEngine):
            await stack.enter_async_context(engine.checked())
        yield engine


def _in_this_process(config: Config, model: LoadedModel, tokenizer: Tokenizer, lease: ComputeLease) -> Sequence[Engine]:
    from ludus.engines.local import LocalEngine

    settings = config.engine
    return [LocalEngine(model, tokenizer, settings, lease=lease, seed=config.seed) for _ in range(settings.replicas)]


async def _attached(stack: AsyncExitStack, config: Config, tokenizer: Tokenizer) -> Sequence[Engine]:
    settings = config.engine
    if settings.kind != "vllm" or not settings.urls:
        raise ConfigError(f"engine.kind={settings.kind!r} needs engine.urls, the servers that run already")
    engines = []
    for url in settings.urls:
        engine = await asyncio.to_thread(VllmEngine.connect, url, tokenizer, api_key=settings.api_key)
        stack.push_async_callback(engine.close)
        engines.append(engine)
    return engines
