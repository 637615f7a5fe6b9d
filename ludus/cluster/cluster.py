"""Gives the loop access to the other processes of a run, which are started when they are needed.

Knows: which launcher the configuration names, what every role is given.  Knows not: what the roles do.
Invariant: a run that needs no other process opens no socket and starts nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ludus.agents.adapter import AgentAdapter
from ludus.api.processes import Processes
from ludus.cluster.base import Launcher, Role, role_command
from ludus.cluster.local import LocalLauncher
from ludus.cluster.ranks import open_ranks
from ludus.cluster.ray import RayLauncher
from ludus.cluster.registry import Registered, Registry
from ludus.cluster.replicas import start_engine
from ludus.cluster.slurm import SlurmLauncher
from ludus.cluster.status import HeadView, RoleView, RunStatus, clear_status, is_free, write_status
from ludus.cluster.supervise import SupervisionPolicy, Supervisor
from ludus.cluster.workers import open_workers
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.weights import WeightFiles
from ludus.processes.cards import find_cards
from ludus.processes.placement import RayScheduler, SlurmScheduler
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel
    from ludus.trainer.sharded import ShardedTrainer

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Cluster(Processes):
    """Starts roles with the run's launcher, and reports when the run cannot continue. Used on one event loop."""

    def __init__(self, config: Config, stack: AsyncExitStack, *, is_run: bool) -> None:
        """is_run: as for `open_cluster`."""
        self._config = config
        self._stack = stack
        self._is_run = is_run
        self._is_announced = False
        self._registry: Registry | None = None
        """None: no role was started yet."""
        self._supervisor: Supervisor | None = None
        self._on_end: list[Callable[[], None]] = []
        self._is_end_asked = False
        """Whether the end was requested, perhaps before a callback was registered."""
        self._started_at = time.time()

    def __repr__(self) -> str:
        return f"Cluster({self._supervisor!r})"

    @property
    def registry(self) -> Registry:
        """The head's registry, which is created by the first call."""
        if self._registry is None:
            scheduler = self._config.scheduler
            registry = Registry(self._config.to_yaml(), host=scheduler.address, on_stop=self._end)
            self._registry = self._stack.enter_context(registry)
        return self._registry

    async def start(self, name: str, count: int, policy: SupervisionPolicy) -> tuple[Registered, ...]:
        """The processes 0 … `count` - 1 of a role, once all of them are ready.

        Raises UserError or BackendError, with the last lines of the process, if one of them ends before that.
        """
        await self.begin(name, count, policy)
        return await (await self._supervision()).ready(name)

    async def begin(self, name: str, count: int, policy: SupervisionPolicy) -> None:
        """Start the processes without waiting for them."""
        settings = self._config.scheduler.role(name)
        cards = self._config.engine.cards_each if name == "engine" else 0
        is_on_heads_card = name == "engine" and self._config.engine.placement == "shared"
        command = role_command(name, self.registry.url)
        role = Role(name, command, settings, count=count, cards=cards, is_on_heads_card=is_on_heads_card)
        await (await self._supervision()).begin(role, policy)

    def announce(self) -> None:
        """Write to the run's folder that this process is its head; removed at the end. Only with `is_run`."""
        assert self._is_run, "only the head of a run may announce itself"
        self._is_announced = True
        self._stack.callback(clear_status, self._config.folder)
        self._report(() if self._supervisor is None else self._supervisor.views())

    async def engine(self, tokenizer: Tokenizer, files: WeightFiles | None) -> Engine:
        """The engine with the configured replicas, each of which is a process; a lost one is replaced."""
        return await start_engine(self._config, self, tokenizer, files)

    def ranks(
        self, tokenizer: Tokenizer, *, sampling: LoadedModel | None
    ) -> AbstractAsyncContextManager[ShardedTrainer]:
        """As `open_ranks`."""
        return open_ranks(self._config, self, tokenizer, sampling=sampling)

    async def workers(self, agents: Sequence[AgentAdapter | None]) -> None:
        """As `open_workers`."""
        await open_workers(self._config, self, agents)

    async def stop(self, name: str) -> None:
        """End the processes of a role. Does nothing if there are none."""
        if self._supervisor is not None:
            await self._supervisor.stop(name)

    def on_close(self, close: Callable[[], None]) -> None:
        """Call `close` before the registry ends, as that waits for pending requests."""
        self._stack.callback(close)

    def on_end(self, ask: Callable[[], None]) -> None:
        """Call `ask`, from any thread, when the end of the run is requested, or a failure forces it."""
        self._on_end.append(ask)
        if self._is_end_asked:
            ask()

    def check(self) -> None:
        """Raises the error that ends the run, if there is one."""
        failure = None if self._supervisor is None else self._supervisor.failure
        if failure is not None:
            raise failure

    async def unless_lost(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What `work` returns. Raises the error that ends the run as soon as there is one."""
        if self._supervisor is None:
            return await work
        return await self._supervisor.unless_failed(work)

    # ---- inside

    async def _supervision(self) -> Supervisor:
        if self._supervisor is None:
            launcher = _launcher(self._config, self._logs())
            if self._is_run:
                self._stack.callback(clear_status, self._config.folder)
            supervisor = Supervisor(launcher, self.registry, on_change=self._report)
            self._supervisor = await self._stack.enter_async_context(supervisor)

            async def end_when_failed() -> None:
                await supervisor.failed()
                self._end()

            watching = asyncio.create_task(end_when_failed(), name="ludus-cluster")
            self._stack.callback(watching.cancel)
        return self._supervisor

    def _end(self) -> None:
        self._is_end_asked = True  # set first, so that callbacks registered meanwhile are called, perhaps twice
        for ask in self._on_end:
            ask()

    def _logs(self) -> Path:
        """The folder of the processes' logs."""
        if self._is_run:
            return self._config.folder
        folder = Path(tempfile.mkdtemp(prefix="ludus-logs-"))

        def remove(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:  # after an error the folder is kept, as the message names a log in it
                shutil.rmtree(folder, ignore_errors=True)

        self._stack.push(remove)
        return folder

    def _report(self, roles: Sequence[RoleView]) -> None:
        # During the start, the folder may still belong to another run of the same name.
        if not self._is_run or not (self._is_announced or is_free(self._config.folder)):
            return
        write_status(self._config.folder, RunStatus(head_view(self._config, self._started_at, self._registry), roles))


@asynccontextmanager
async def open_cluster(config: Config, *, is_run: bool = True) -> AsyncIterator[Cluster]:
    """The cluster of the run, without any process yet; started processes end with the block.

    is_run: whether this process owns the run's folder. False: a run of this name may be in progress, and its folder is
    not changed.
    """
    if isinstance(config.scheduler, RayScheduler) and not _places(config):
        logger.warning(
            "scheduler.type=ray has nothing to place: this process samples, trains and plays by itself; "
            "engine.kind=server, trainer.ranks and rollout.agent.workers start processes on the nodes"
        )
    async with AsyncExitStack() as stack:
        yield Cluster(config, stack, is_run=is_run)


def _places(config: Config) -> bool:
    """Whether the run has processes besides the head."""
    return config.engine.num_started > 0 or config.trainer.ranks > 1 or config.rollout.num_workers > 0


def head_view(config: Config, started_at: float, registry: Registry | None = None) -> HeadView:
    """This process's entry in the status of the run."""
    process = (os.getpid(), socket.gethostname(), config.scheduler.type)
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("RAY_JOB_ID")
    url, key = ("", "") if registry is None else (registry.url, registry.key)
    return HeadView(*process, job, url, key, started_at)


def _launcher(config: Config, folder: Path) -> Launcher:
    match config.scheduler:
        case RayScheduler(ray=settings):
            return RayLauncher(folder, settings, head_card=_head_card(config))
        case SlurmScheduler(head=head):
            return SlurmLauncher(folder, head=head, head_card=_head_card(config))
        case _:
            return LocalLauncher(folder, head_card=_head_card(config))


def _head_card(config: Config) -> str | None:
    """The card that this process computes on, as in CUDA_VISIBLE_DEVICES. None: it uses none."""
    try:
        from ludus.models.device import card_of, choose_device
    except ModuleNotFoundError:  # without torch it uses no card
        return None
    device = choose_device(config.model.device)
    card = card_of(device, find_cards()) if device.type == "cuda" else None
    return None if card is None else card.name
