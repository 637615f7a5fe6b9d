"""Starts the ranks of a trainer: rank 0 is the run's head, the others are processes of the run.

Knows: which part of the configuration a rank needs, how rank 0 finds the others.  Knows not: what ranks compute.
Invariant: when the block of `open_ranks` ends, the other ranks have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ludus.cluster.role_client import RoleClient, RoleSpec
from ludus.cluster.supervise import SupervisionPolicy
from ludus.config import Config
from ludus.engines.lease import ComputeLease
from ludus.errors import BackendError, ConfigError
from ludus.loop.trainer_thread import TrainerThread
from ludus.models.resolve import resolve_tokenizer
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.cluster.cluster import Cluster
    from ludus.models.load import LoadedModel
    from ludus.trainer.group import TorchRanks
    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import ModelTrainer

ROLE = "trainer"
# How long to wait, after a connection broke, for the launcher to report a process that ended.
_VERDICT_S = 3.0


@asynccontextmanager
async def open_ranks(
    config: Config, cluster: Cluster, tokenizer: Tokenizer, *, sampling: LoadedModel | None
) -> AsyncIterator[ShardedTrainer]:
    """The trainer of `config.trainer.ranks` processes, until the block ends.

    sampling: a whole model in this process that samples. None: there is none.
    Raises UserError or BackendError, with the last lines of the process, if a rank does not start, or is lost.
    """
    from ludus.models.device import choose_device
    from ludus.trainer.group import TorchRanks, open_rendezvous
    from ludus.trainer.sharded import ShardedTrainer

    device, size = choose_device(config.model.device), config.trainer.ranks
    if device.type == "cuda" and not config.scheduler.trainer.gpus:
        raise ConfigError("the ranks of a trainer need a card each: set scheduler.trainer.gpus=1, or model.device=cpu")
    if device.type == "mps":
        raise ConfigError("nothing connects ranks on Apple's GPUs: set trainer.ranks=1, or model.device=cpu")
    rendezvous, store = open_rendezvous(config.scheduler.address)
    ranks: TorchRanks | None = None
    trainer: ShardedTrainer | None = None

    async def leave(_role: str, _index: int) -> None:
        if ranks is not None:
            await asyncio.to_thread(ranks.abort)

    # A lost rank is not restarted, as its shard of the weights is lost: the run ends, and resumes from its checkpoint.
    await cluster.start(ROLE, size - 1, SupervisionPolicy(asdict(rendezvous), on_lost=leave, max_restarts=0))
    try:
        with TrainerThread("ranks") as work:  # torch may block on a lost rank, so it runs on a thread of its own
            meeting = work.run(TorchRanks.lead, store, size, device, check=cluster.check, **_split(config))
            ranks = await cluster.unless_lost(meeting)
            own = await work.run(_own_trainer, config, tokenizer, ranks)
        trainer = ShardedTrainer(own, ranks, sampling=sampling)
        yield trainer
    except BackendError:
        await cluster.unless_lost(asyncio.sleep(_VERDICT_S))  # raises a better error if another process ended
        raise
    finally:
        if trainer is not None:
            trainer.close()
        await cluster.stop(ROLE)


def follow(role_client: RoleClient, config: Config, role_spec: RoleSpec, _until: object) -> None:
    """Run one of the other ranks until rank 0, or a signal, ends it. Nothing is saved at that point."""
    from ludus.models.device import choose_device
    from ludus.trainer.group import Rendezvous, TorchRanks
    from ludus.trainer.sharded import follow_commands

    rendezvous = Rendezvous(str(role_spec.task["host"]), int(role_spec.task["port"]))
    with role_client:
        role_client.join()
        device = choose_device(config.model.device)
        ranks = TorchRanks.follow(rendezvous, role_client.index + 1, config.trainer.ranks, device, **_split(config))
        follow_commands(_own_trainer(config, Tokenizer.load(resolve_tokenizer(config.model.path)), ranks), ranks)


def _split(config: Config) -> dict[str, int]:
    return {"context": config.trainer.context_parallel, "tensor": config.trainer.tensor_parallel}


def _own_trainer(config: Config, tokenizer: Tokenizer, ranks: TorchRanks) -> ModelTrainer:
    """The trainer of this process's shard. It shares no weights with an engine, and so needs no lease."""
    from ludus.models.load import load_model
    from ludus.models.shards import shard_model
    from ludus.trainer.critic import CriticModel, load_critic
    from ludus.trainer.step import ModelTrainer

    model = shard_model(load_model(config.model, seed=config.seed, is_mapped=True), ranks.groups)
    critic = None
    if config.has_critic:
        critic = load_critic(config.model, config.critic, seed=config.seed, is_mapped=True)
        if isinstance(critic, CriticModel):
            critic = replace(critic, model=shard_model(critic.model, ranks.groups))
    return ModelTrainer(
        model,
        config.trainer,
        config.algorithm,
        lease=ComputeLease(),
        tokenizer=tokenizer,
        ranks=ranks,
        seed=config.seed,
        critic=critic,
    )
