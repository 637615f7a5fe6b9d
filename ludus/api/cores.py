"""Cores of one machine, shared among the processes of a run that compute on it.

Knows: which of them compute at the same time.  Knows not: who starts them, what they compute with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ludus.config import Config
from ludus.engines.serving.settings import LudusServerSettings
from ludus.processes.placement import LocalScheduler

HEAD = "head"


def shared_cores(config: Config, cores: int) -> Mapping[str, int]:
    """For each process of the roles that compute beside the head, and for the head; empty where nothing computes
    beside it, or where roles are on machines of others.

    Those that compute at the same time share the cores: the ranks of a trainer; the replicas of our engine; ranks and
    replicas together where rollouts run ahead of the training. Who has `cpus` has those, and the others what is left,
    but none more than OMP_NUM_THREADS.
    """
    ranks, engines = config.trainer.ranks - 1, 0
    if isinstance(config.engine, LudusServerSettings):  # other servers compute on cards
        engines = config.engine.num_started
    if not isinstance(config.scheduler, LocalScheduler) or not (ranks or engines):
        return {}
    trains, samples = {HEAD: 1, "trainer": ranks}, {"engine": engines}
    at_once = [trains | samples] if config.rollout.max_head_offpolicyness else [trains, samples]
    said = {name: config.scheduler.role(name).cpus for name in ("trainer", "engine")}
    given = {name: max(1, int(cpus)) for name, cpus in said.items() if cpus is not None}
    return {name: share for counts in at_once for name, share in _shares(counts, given, cores).items() if counts[name]}


def _shares(counts: Mapping[str, int], given: Mapping[str, int], cores: int) -> Mapping[str, int]:
    """Of one process of each kind. counts: processes of each.  given: what one of a kind has in any case."""
    left = cores - sum(count * given.get(name, 0) for name, count in counts.items())
    others = sum(count for name, count in counts.items() if name not in given)
    told = os.environ.get("OMP_NUM_THREADS", "")
    most = int(told) if told.isdigit() else cores
    return {name: given.get(name, max(1, min(most, left // max(1, others)))) for name in counts}
