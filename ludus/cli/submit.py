"""Submits a training as a Slurm job, whose batch script runs the head."""

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
    """Whether the run must be submitted as a Slurm job, as this process is not in one."""
    return isinstance(config.scheduler, SlurmScheduler) and JOB_VARIABLE not in os.environ


def submit_training(config: Config, arguments: Sequence[str], *, resume: bool) -> str:
    """Submit a job that runs `ludus train ARGUMENTS`; returns its id. Raises UserError if the run or the job is
    impossible."""
    config = check_training(config)
    if not resume:
        RunStore.check_free(config.run_root, config.name)
    scheduler = config.scheduler
    assert isinstance(scheduler, SlurmScheduler), "the scheduler of a submitted run must be slurm"
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
