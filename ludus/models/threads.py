"""How many threads torch and the kernels compute with in this process.

Knows: torch's setting, OMP_NUM_THREADS.  Knows not: models, cores.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from ludus.machine import Machine

logger = logging.getLogger(__name__)


@cache
def choose_threads() -> int:
    """No more than the machine has cores to spare, looked at once in a process; the number.

    OMP_NUM_THREADS decides where it is set; a warning says if there are not as many cores.
    """
    most = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ:
        cores = Machine.look(seconds=0).workers
        if most > cores:
            logger.warning(
                "OMP_NUM_THREADS has %d threads compute on %d of this machine's cores, where they wait for each other; "
                "unset it, or set it to %d",
                *(most, cores, cores),
            )
        return most
    machine = Machine.look()
    num, usual = min(most, machine.threads), min(most, machine.whole_cores or machine.cores)
    torch.set_num_threads(num)
    if num < usual:
        load = f"others keep {machine.busy:.1f} of {machine.cores} cores busy"
        quota = f"its control group allows {machine.quota:g} of {machine.cores} cores"
        why = load if machine.threads < machine.most_threads else quota
        logger.warning("computing with %d of %d threads: %s; OMP_NUM_THREADS=N decides otherwise", num, usual, why)
    logger.info("model.threads num=%d cores=%d quota=%g busy=%.1f", num, machine.cores, machine.quota, machine.busy)
    return num


def compute_as(num: int) -> None:
    """From now on with `num` threads, as somebody did before; where that cannot be it is said.

    Sums of other numbers of parts are rounded otherwise, and how many are chosen depends on who else computes.
    """
    now, cores = torch.get_num_threads(), Machine.look(seconds=0).workers
    if num == now:
        return
    if (said := os.environ.get("OMP_NUM_THREADS")) is not None or num > cores:
        why = f"OMP_NUM_THREADS={said}" if said is not None else f"this machine has {cores} cores for them"
        logger.warning("computing with %d threads, not with %d as before: %s; last bits may differ", now, num, why)
        return
    logger.warning("computing with %d threads instead of %d, as before", num, now)
    torch.set_num_threads(num)


@contextmanager
def computing_within(most: int | None) -> Iterator[None]:
    """In the block with no more than `most` threads, because others of the run compute beside this process.

    OMP_NUM_THREADS decides where it is set.  most: None: nobody does.
    """
    before = torch.get_num_threads()
    if most is not None and most < before and "OMP_NUM_THREADS" not in os.environ:
        logger.info("model.threads num=%d because others of the run compute too", most)
        torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(before)
