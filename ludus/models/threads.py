"""How many threads torch and the kernels compute with in this process.

Knows: torch's setting, OMP_NUM_THREADS.  Knows not: models, cores.
"""

from __future__ import annotations

import logging
import os
from functools import cache

import torch

from ludus.machine import Machine

logger = logging.getLogger(__name__)


@cache
def choose_threads() -> int:
    """No more than the machine has cores to spare, looked at once in a process; the number.

    OMP_NUM_THREADS decides where it is set, and nothing is chosen then.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    machine, most = Machine.look(), torch.get_num_threads()
    num = min(most, machine.threads)
    torch.set_num_threads(num)
    if num < most:
        load = f"others keep {machine.busy:.1f} of {machine.cores} cores busy"
        why = load if num < machine.workers else f"its control group allows {machine.quota:g} of {machine.cores} cores"
        logger.warning("computing with %d of %d threads: %s; OMP_NUM_THREADS=N decides otherwise", num, most, why)
    logger.info("model.threads num=%d cores=%d quota=%g busy=%.1f", num, machine.cores, machine.quota, machine.busy)
    return num


def use_threads(num: int) -> None:
    """From now on so many, whatever was chosen before."""
    if num != torch.get_num_threads():
        logger.warning("computing with %d threads instead of %d, as the run did", num, torch.get_num_threads())
        torch.set_num_threads(num)
