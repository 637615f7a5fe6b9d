"""Custom gatherings: `set_gather_context`, and wrappers for each group or rollout that is run inside.

Knows: tallies, bars of tqdm.  Knows not: how results are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from ludus.compat.art.bars import Bar
from ludus.compat.art.context import bound
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.rollout import Rollout
from ludus.compat.art.tally import Member, Played, RolloutTally, current_tally, settle
from ludus.compat.members import with_members
from ludus.errors import UserError


@with_members("art", "gather.GatherContext")
class GatherContext(RolloutTally):
    """The counts of a custom gathering, shown on a bar whose total the user sets."""

    def __init__(
        self, pbar: Any = None, pbar_total_completion_tokens: bool = False, max_exceptions: int | float = 0
    ) -> None:
        """pbar_total_completion_tokens: ignored, as only bars of `gather_trajectory_groups` count tokens."""
        super().__init__(pbar, max_exceptions=max_exceptions)

    @property
    def pbar(self) -> Any:
        """The bar. None: there is none."""
        return None if type(self._bar) is Bar else self._bar

    @pbar.setter
    def pbar(self, bar: Any) -> None:
        self._bar = Bar() if bar is None else bar

    def begin(self, num_rollouts: int) -> None:
        self._num_rollouts += num_rollouts


@contextmanager
def set_gather_context(context: GatherContext) -> Iterator[None]:
    """Rollouts that are run in the block belong to this gathering."""
    with bound(current_tally, context):
        yield


def get_gather_context() -> GatherContext:
    """The gathering of this block. Raises UserError outside of one."""
    context = current_tally.get()
    if not isinstance(context, GatherContext):
        raise UserError("there is no gathering of your own here: `with set_gather_context(GatherContext()): …` first")
    return context


async def wrap_trajectories_awaitable(awaitable: Member) -> Played | Exception:
    """Run a rollout in its own session; returns its result, or its exception if that is tolerated."""
    context = get_gather_context()
    context.begin(1)
    return await settle(awaitable, Rollout(context.gathering, next(context.group_idxs), 0), context)


async def wrap_group_awaitable(awaitable: Awaitable[Any]) -> Any:
    """Run a group or a rollout; returns the finished group, or the rollout's result. None: a tolerated exception."""
    if isinstance(awaitable, TrajectoryGroup):
        return await awaitable
    found = await wrap_trajectories_awaitable(awaitable)
    if isinstance(found, list) and (bar := get_gather_context().pbar) is not None:
        bar.update(len(found) - 1)  # the rollout counts as one; ART's bar counts its trajectories
    return None if isinstance(found, Exception) else found
