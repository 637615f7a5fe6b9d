"""The processes of a run beside this one, as what is opened here needs them.

Knows: what is asked of them.  Knows not: what starts them, and where; a configuration's class names that.
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
from ludus.rollout.remote import RemoteAgentAdapter
from ludus.settings import import_object
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel
    from ludus.trainer.sharded import ShardedTrainer

ResultT = TypeVar("ResultT")


class Processes:
    """Those of a run of this process alone, of which there are none; a class of a run with others starts them.

    None of them runs before it is needed; all of them end with the block that opened this.
    """

    async def engine(self, tokenizer: Tokenizer, files: WeightFiles | None) -> Engine:
        """The engine of the configuration's replicas, each of which is a process; one that is lost is replaced.

        files: where they read the run's weights. None: these reach them over HTTP.
        """
        _refuse("engines that the run starts")

    def ranks(
        self, tokenizer: Tokenizer, *, sampling: LoadedModel | None
    ) -> AbstractAsyncContextManager[ShardedTrainer]:
        """The trainer of `trainer.ranks` processes, until the block ends. sampling: a whole model in this process that
        samples; None: there is none."""
        _refuse("trainer.ranks above 1")

    async def workers(self, agents: Sequence[AgentAdapter | None]) -> None:
        """Rollout workers for those of the agents that play in them, until the run ends."""
        if any(isinstance(agent, RemoteAgentAdapter) for agent in agents):
            _refuse("rollout.agent.workers")

    def announce(self) -> None:
        """Say in the run's folder that this process is its head, for as long as it is."""

    def on_end(self, ask: Callable[[], None]) -> None:
        """Have `ask` called when the end of the run is asked for, or something makes it. From any thread."""

    def check(self) -> None:
        """Raises what makes the end of the run, if something does."""

    async def unless_lost(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What `work` returns. Raises what makes the end of the run as soon as something does."""
        return await work


@asynccontextmanager
async def alone(config: Config, *, is_run: bool = True) -> AsyncIterator[Processes]:
    """No other process, whatever is configured."""
    del config, is_run
    yield Processes()


def open_processes(config: Config, *, is_run: bool = True) -> AbstractAsyncContextManager[Processes]:
    """The run's other processes, as the configuration's class has them.

    is_run: the run's folder is this process's own. False: a run of this name may be going on, and its folder is left
    as it is.
    """
    opened: AbstractAsyncContextManager[Processes] = import_object(config.processes)(config, is_run=is_run)
    return opened


def _refuse(what: str) -> NoReturn:
    raise UserError(
        f"{what} need processes beside this one, which this configuration's class has not; use ludus.Config"
    )
