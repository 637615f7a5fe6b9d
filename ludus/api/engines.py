"""The engines of a run, whichever kind they are, as the one engine that the recorder asks.

Knows: which kind is built how, and from which settings.  Knows not: how any of them samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ludus.api.servers import KEY, connect, open_files, server_command
from ludus.cluster.crew import Crew
from ludus.cluster.registry import Registered
from ludus.cluster.supervise import Watch
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.kind import LocalKind, kind_of
from ludus.engines.lease import ComputeLease
from ludus.engines.process import ServerPlace
from ludus.engines.routed.engine import RoutedEngine, route
from ludus.engines.settings import ServerSettings
from ludus.engines.weights import LoadedWeights, WeightFiles
from ludus.http.keys import new_key
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel


@asynccontextmanager
async def open_engines(
    config: Config, model: LoadedModel, tokenizer: Tokenizer, lease: ComputeLease, crew: Crew
) -> AsyncIterator[Engine]:
    """The engine that samples for the run, until the block ends. lease: guards the weights of this process.

    crew: starts the engines that are processes of the run.
    Raises UserError or BackendError where an engine cannot be reached, or has another model.
    """
    async with AsyncExitStack() as stack:
        kind, settings = kind_of(config.engine), config.engine
        if isinstance(kind, LocalKind):
            options = {"lease": lease, "seed": config.seed}
            replicas = [kind.open(model, tokenizer, settings, **options) for _ in range(settings.replicas)]
            engine = route(replicas, tokenizer, seed=config.seed)
        else:
            files = open_files(config, model)
            if files is not None:
                stack.callback(files.close)
            if isinstance(settings, ServerSettings) and settings.urls:
                engine = await _attached(stack, config, settings, model, tokenizer, files)
            else:
                engine = await _started(config, tokenizer, crew, files)
        stack.push_async_callback(engine.close)
        if isinstance(engine, RoutedEngine):
            await stack.enter_async_context(engine.checked())
        if engine.stats().version < 0:  # whatever the servers have, it is not known to be this model's weights
            await engine.publish(0, LoadedWeights(model))
        yield engine


async def _attached(
    stack: AsyncExitStack,
    config: Config,
    settings: ServerSettings,
    model: LoadedModel,
    tokenizer: Tokenizer,
    files: WeightFiles | None,
) -> Engine:
    """Engines that run already."""
    engines = []
    for url in settings.urls:
        engine = await connect(config, url, tokenizer, settings.api_key, files)
        stack.push_async_callback(engine.close)
        engines.append(engine)
    used = [engine for engine in engines if engine.stats().version < 0]
    if len(used) < len(engines):  # else the router is given them as one publish, and repeats it where it is missed
        for engine in used:
            await engine.publish(0, LoadedWeights(model))
    return route(engines, tokenizer, seed=config.seed)


async def _started(config: Config, tokenizer: Tokenizer, crew: Crew, files: WeightFiles | None) -> Engine:
    """Engines in processes of the run; one that is lost is replaced, and has the newest weights before it samples."""
    key = new_key()
    server_command(config, ServerPlace("127.0.0.1", 1, key, config.seed, 0))  # what cannot be started is said here
    router: asyncio.Future[RoutedEngine] = asyncio.get_running_loop().create_future()
    numbers: dict[int, int] = {}
    """In the router, by index of the process."""

    async def lost(_name: str, index: int) -> None:
        if index in numbers:  # else it was lost again before it could be used
            engine = await (await router).remove(numbers.pop(index))
            await engine.close()

    async def joined(found: Registered) -> None:
        numbers[found.index] = await (await router).add(await connect(config, found.url, tokenizer, key, files))

    restarts = config.scheduler.max_restarts
    watch = Watch({KEY: key}, on_join=joined, on_lost=lost, max_restarts=restarts)
    found = await crew.start("engine", config.engine.replicas, watch)
    engines = [await connect(config, each.url, tokenizer, key, files) for each in found]
    # Calls wait as long as a replica in the place of a lost one may take to start; the crew ends the run otherwise.
    routed = RoutedEngine(engines, stop_ids=tokenizer.stop_ids, seed=config.seed, patience_s=watch.start_timeout_s)
    numbers.update({each.index: number for each, number in zip(found, sorted(routed.loads()), strict=True)})
    router.set_result(routed)
    return routed
