"""Starts the replicas of an engine, each as a process of the run.

Knows: the cluster, how a server is reached.  Knows not: how it samples.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ludus.api.servers import KEY, connect, server_command
from ludus.cluster.registry import Registered
from ludus.cluster.supervise import SupervisionPolicy
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.process import ReplicaAddress
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.weights import WeightFiles
from ludus.http.keys import new_key
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.cluster.cluster import Cluster


async def start_engine(config: Config, cluster: Cluster, tokenizer: Tokenizer, files: WeightFiles | None) -> Engine:
    """An engine that routes to replicas in processes of the run. A lost one is replaced, and gets the newest weights
    before it samples."""
    key = new_key()
    server_command(config, ReplicaAddress("127.0.0.1", 1, key, config.seed, 0))  # raises early if it cannot be started
    router: asyncio.Future[RoutedEngine] = asyncio.get_running_loop().create_future()
    numbers: dict[int, int] = {}
    """Number in the router, by index of the process."""

    async def lost(_name: str, index: int) -> None:
        if index in numbers:  # otherwise it was lost again before it was used
            engine = await (await router).remove(numbers.pop(index))
            await engine.close()

    async def joined(found: Registered) -> None:
        numbers[found.index] = await (await router).add(await connect(config, found.url, tokenizer, key, files))

    restarts = config.scheduler.max_restarts
    watch = SupervisionPolicy({KEY: key}, on_join=joined, on_lost=lost, max_restarts=restarts)
    found = await cluster.start("engine", config.engine.replicas, watch)
    engines = [await connect(config, each.url, tokenizer, key, files) for each in found]
    # Calls wait for as long as a replacement of a lost replica may take to start; then the cluster ends the run.
    routed = RoutedEngine(engines, stop_ids=tokenizer.stop_ids, seed=config.seed, patience_s=watch.start_timeout_s)
    numbers.update({each.index: number for each, number in zip(found, sorted(routed.loads()), strict=True)})
    router.set_result(routed)
    return routed
