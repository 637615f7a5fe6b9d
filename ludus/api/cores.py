"""Divides the cores of one machine among the processes of a run that compute on it.

Knows: which of them compute at the same time.  Knows not: what starts them, what they compute with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ludus.config import Config
from ludus.engines.serving.settings import LudusServerSettings
from ludus.processes.placement import LocalScheduler

HEAD = "head"


def shared_cores(config: Config, cores: int) -> Mapping[str, int]:
    """Cores for the head and for each process of the other roles, by role. Empty if only the head computes, or if roles
    may be on other machines.

    Processes that compute at the same time share the cores: the ranks of a trainer; the replicas of our engine; ranks
    and replicas together if rollouts run ahead of training. A role with `cpus` set gets those; the others get equal
    parts of the rest, but no more than OMP_NUM_THREADS.
    """
    ranks, engines = config.trainer.ranks - 1, 0
    if isinstance(config.engine, LudusServerSettings):  # other kinds of servers compute on GPUs
        engines = config.engine.num_started
    if not isinstance(config.scheduler, LocalScheduler) or not (ranks or engines):
        return {}
    trains, samples = {HEAD: 1, "trainer": ranks}, {"engine": engines}
    at_once = [trains | samples] if config.rollout.max_head_offpolicyness else [trains, samples]
    said = {name: config.scheduler.role(name).cpus for name in ("trainer", "engine")}
    given = {name: max(1, int(cpus)) for name, cpus in said.items() if cpus is not None}
    return {name: share for counts in at_once for name, share in _shares(counts, given, cores).items() if counts[name]}


def _shares(counts: Mapping[str, int], given: Mapping[str, int], cores: int) -> Mapping[str, int]:
    """Cores of one process of each role. counts: processes of each role.  given: cores that were set for a role."""
    left = cores - sum(count * given.get(name, 0) for name, count in counts.items())
    others = sum(count for name, count in counts.items() if name not in given)
    told = os.environ.get("OMP_NUM_THREADS", "")
    most = int(told) if told.isdigit() else cores
    return {name: given.get(name, max(1, min(most, left // max(1, others)))) for name in counts}
