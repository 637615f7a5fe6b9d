"""The ranks of a trainer: rank 0 in the run's head, the others as processes of the run.

Knows: which part of the configuration a rank needs, how rank 0 finds the others.  Knows not: what ranks compute.
Invariant: when the block of `open_ranks` ends, no rank but this process is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from ludus.cluster.member import Brief, Member
from ludus.cluster.supervise import Watch
from ludus.config import Config
from ludus.engines.lease import ComputeLease
from ludus.errors import BackendError, ConfigError
from ludus.models.resolve import resolve_model
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.cluster.crew import Crew
    from ludus.models.load import LoadedModel
    from ludus.trainer.group import TorchRanks
    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import Trainer

ROLE = "trainer"
# After a connection broke, as long as it takes until the launcher tells of the process that ended.
_VERDICT_S = 3.0


@asynccontextmanager
async def open_ranks(
    config: Config, crew: Crew, tokenizer: Tokenizer, *, sampling: LoadedModel | None
) -> AsyncIterator[ShardedTrainer]:
    """The trainer of `config.trainer.ranks` processes, until the block ends.

    sampling: a whole model in this process that samples. None: there is none.
    Raises UserError or BackendError, with the last lines of the process, if a rank does not come, or is lost.
    """
    from ludus.models.device import choose_device
    from ludus.trainer.group import TorchRanks, open_meeting
    from ludus.trainer.sharded import ShardedTrainer

    device, size = choose_device(config.model.device), config.trainer.ranks
    if device.type == "cuda" and not config.scheduler.trainer.gpus:
        raise ConfigError("the ranks of a trainer need a card each: set scheduler.trainer.gpus=1, or model.device=cpu")
    meeting, store = open_meeting(config.scheduler.address)
    # A rank that was lost has lost its rows of the weights: the run ends and goes on from its checkpoint.
    await crew.start(ROLE, size - 1, Watch(asdict(meeting), max_restarts=0))
    ranks = await asyncio.to_thread(TorchRanks.lead, store, size, device, check=crew.check)
    trainer = ShardedTrainer(await asyncio.to_thread(_own_trainer, config, tokenizer, ranks), ranks, sampling=sampling)
    try:
        yield trainer
    except BackendError:
        await crew.unless_lost(asyncio.sleep(_VERDICT_S))  # says more, if it was another process
        raise
    finally:
        trainer.close()
        await crew.stop(ROLE)


def follow(member: Member, config: Config, brief: Brief) -> None:
    """Be one of the other ranks until rank 0 ends it."""
    from ludus.models.device import choose_device
    from ludus.trainer.group import Meeting, TorchRanks
    from ludus.trainer.sharded import obey

    meeting = Meeting(str(brief.task["host"]), int(brief.task["port"]))
    with member:
        member.join()
        device = choose_device(config.model.device)
        ranks = TorchRanks.follow(meeting, member.index + 1, config.trainer.ranks, device)
        obey(_own_trainer(config, Tokenizer.load(resolve_model(config.model.path)), ranks), ranks)


def _own_trainer(config: Config, tokenizer: Tokenizer, ranks: TorchRanks) -> Trainer:
    """Of this process's rows. It shares no weights with an engine, and so no lease."""
    from ludus.models.load import load_model
    from ludus.models.shards import shard_model
    from ludus.trainer.step import Trainer

    model = shard_model(load_model(config.model, seed=config.seed, is_mapped=True), ranks.mesh)
    return Trainer(
        model,
        config.trainer,
        config.algorithm,
        lease=ComputeLease(),
        tokenizer=tokenizer,
        ranks=ranks,
        seed=config.seed,
    )
