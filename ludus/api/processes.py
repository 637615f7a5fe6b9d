"""The interface to the other processes of a run.

Knows: what they are needed for.  Knows not: how and where they are started; the configuration's class names that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ludus.agents.adapter import AgentAdapter
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.engines.weights import WeightFiles
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.rollout.remote import RemoteAgentAdapter
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel
    from ludus.trainer.sharded import ShardedTrainer

ResultT = TypeVar("ResultT")


class Processes:
    """The interface, for a run that has only this process; `cluster` has the implementation that starts others.

    A process is started when it is first needed; all of them end with the block that opened this.
    """

    async def engine(self, tokenizer: Tokenizer, files: WeightFiles | None) -> Engine:
        """The engine made of the configured replicas, each a process; one that is lost is replaced.

        files: where they read published weights. None: weights are sent to them over HTTP.
        """
        _refuse("engines that the run starts")

    def ranks(
        self, tokenizer: Tokenizer, *, sampling: LoadedModel | None
    ) -> AbstractAsyncContextManager[ShardedTrainer]:
        """The trainer of `trainer.ranks` processes, until the block ends. sampling: the whole model of this process, if
        an engine here samples with it. None: none does."""
        _refuse("trainer.ranks above 1")

    async def workers(self, agents: Sequence[AgentAdapter | None]) -> None:
        """Start rollout workers for those agents that play in them, until the run ends."""
        if any(isinstance(agent, RemoteAgentAdapter) for agent in agents):
            _refuse("rollout.agent.workers")

    def announce(self) -> None:
        """Write to the run's folder that this process is its head, until it ends."""

    def on_end(self, ask: Callable[[], None]) -> None:
        """Have `ask` called, from any thread, when the run must end: it was asked to, or lost a process for good."""

    def check(self) -> None:
        """Raises the reason why the run must end, if there is one."""

    async def unless_lost(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What `work` returns. Raises the reason why the run must end as soon as there is one."""
        return await work


@asynccontextmanager
async def alone(config: Config, *, is_run: bool = True) -> AsyncIterator[Processes]:
    """The run's `Processes` if there are to be no others, whatever is configured."""
    del config, is_run
    yield Processes()


def open_processes(config: Config, *, is_run: bool = True) -> AbstractAsyncContextManager[Processes]:
    """The run's `Processes`, opened as the configuration's class says.

    is_run: this process owns the run's folder. False: a run of this name may be going on, so its folder is not touched.
    """
    opened: AbstractAsyncContextManager[Processes] = import_object(config.processes)(config, is_run=is_run)
    return opened


def _refuse(what: str) -> NoReturn:
    raise UserError(
        f"{what} need processes beside this one, which this configuration's class has not; use ludus.Config"
    )
