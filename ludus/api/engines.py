"""Opens the engines of a run, of whichever kind, as the one engine that the recorder calls.

Knows: how each kind is built, and from which settings.  Knows not: how any of them samples.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ludus.api.processes import Processes
from ludus.api.servers import connect, open_files
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.kind import LocalKind, kind_of
from ludus.engines.lease import ComputeLease
from ludus.engines.routed.engine import RoutedEngine, route
from ludus.engines.settings import ServerSettings
from ludus.engines.weights import LoadedWeights
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel


@asynccontextmanager
async def open_engines(
    config: Config, model: LoadedModel, tokenizer: Tokenizer, lease: ComputeLease, processes: Processes
) -> AsyncIterator[Engine]:
    """The engine that samples for the run, until the block ends. lease: guards the weights of this process.

    processes: starts the engines that are processes of the run.
    Raises UserError or BackendError if an engine cannot be reached, or serves another model.
    """
    async with AsyncExitStack() as stack:
        kind, settings = kind_of(config.engine), config.engine
        if isinstance(kind, LocalKind):
            options = {"lease": lease, "seed": config.seed}
            opened = [kind.open(model, tokenizer, settings, **options) for _ in range(settings.replicas)]
            engine = route(opened, tokenizer, seed=config.seed)
        else:
            files = open_files(config, model)
            if files is not None:
                stack.callback(files.close)
            if isinstance(settings, ServerSettings) and settings.urls:
                replicas: list[Engine] = []  # servers that run already
                for url in settings.urls:
                    replicas.append(await connect(config, url, tokenizer, settings.api_key, files))
                    stack.push_async_callback(replicas[-1].close)
                used = [replica for replica in replicas if replica.stats().version < 0]
                if len(used) < len(replicas):  # if all need the weights, one publish through the router sends them
                    for replica in used:
                        await replica.publish(0, LoadedWeights(model))
                engine = route(replicas, tokenizer, seed=config.seed)
            else:
                engine = await processes.engine(tokenizer, files)
        stack.push_async_callback(engine.close)
        if isinstance(engine, RoutedEngine):
            await stack.enter_async_context(engine.checked())
        if engine.stats().version < 0:  # the servers have weights of which nobody knows whether they are this model's
            await engine.publish(0, LoadedWeights(model))
        yield engine
