"""A training that Slurm runs: submitted as a job, whose own shell is the head."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from ludus.cluster.slurm import JOB_VARIABLE, SlurmJob, submit
from ludus.compat.config import Config
from ludus.config import check_training
from ludus.processes.placement import SlurmScheduler
from ludus.processes.program import PROGRAM
from ludus.runs.store import RunStore

logger = logging.getLogger(__name__)


def wants_job(config: Config) -> bool:
    """The run is to be a job of Slurm, and this process belongs to none."""
    return isinstance(config.scheduler, SlurmScheduler) and JOB_VARIABLE not in os.environ


def submit_training(config: Config, arguments: Sequence[str], *, resume: bool) -> str:
    """The id of the job that runs `ludus train ARGUMENTS`. Raises UserError if the run or the job cannot be."""
    config = check_training(config)
    if not resume:
        RunStore.check_free(config.run_root, config.name)
    scheduler = config.scheduler
    assert isinstance(scheduler, SlurmScheduler), "a run that wants a job is Slurm's"
    roles = [
        (scheduler.head, 1),
        (scheduler.engine, config.engine.num_started),
        (scheduler.trainer, config.trainer.ranks - 1),
        (scheduler.rollout, config.rollout.num_workers),
    ]
    roles_have_cards = scheduler.engine.gpus or (scheduler.trainer.gpus and config.trainer.ranks > 1)
    if roles_have_cards and not scheduler.head.gpus and config.model.device != "cpu":
        logger.warning(
            "roles have cards and the head has none of the job: it computes on the first that it sees, which may be a "
            "role's; set scheduler.head.gpus=1, or model.device=cpu"
        )
    command = [*PROGRAM, "train", *arguments]
    return submit(SlurmJob(config.name, config.folder, command, roles, scheduler))
