"""Measures sampling and training where a control group allows fewer cores than the machine shows.

Knows: the benches of sampling and training.  Knows not: how a machine is shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ludus.checks.bench.sample import measure_sample
from ludus.checks.bench.train import measure_train
from ludus.checks.bench.workloads import QuotaWork
from ludus.engines.lease import release_workers

_TASKS = Path("/proc/self/task")
# Of an operation that torch gives to any number of threads: 2^15 numbers are the least for one.
_NUMBERS = 2**23


async def measure_quota(work: QuotaWork) -> dict[str, Any]:
    """Tokens per second of either work, and with how many threads this process computes then."""
    sampled = (await measure_sample(work.sampling))["rows"][0]
    rows = [{"work": "sampling", "tokens_per_s": sampled["tokens_per_s"], "threads": computing_threads()}]
    trained = measure_train(work.training)
    rows.append({"work": "training", "tokens_per_s": trained["tokens_per_s"], "threads": computing_threads()})
    return {"rows": [{**row, "cores": os.cpu_count()} for row in rows]}


def computing_threads() -> int:
    """With how many threads of this process an operation is computed: those that it starts, and the calling one.

    Where the system does not list threads, the number that torch was told.
    """
    if not _TASKS.exists():
        return torch.get_num_threads()
    release_workers()
    before = {each.name for each in _TASKS.iterdir()}
    torch.ones(_NUMBERS).exp_()
    return 1 + len({each.name for each in _TASKS.iterdir()} - before)
