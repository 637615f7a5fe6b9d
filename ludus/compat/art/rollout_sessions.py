"""The sessions in which rollouts ask a model, wherever these are recorded: each rollout in one of its own.

Knows: rollouts, steps, how a rollout ended.  Knows not: models, what a session is.
Invariants: a session is begun with its rollout's first request and ended with the rollout; names, and with them seeds,
depend on the step and the order of gatherings alone, so that a loop that is played again, here or against a server,
asks with the same seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from ludus.compat.art.rollout import Gathering, Rollout
from ludus.episodes.outcome import Told


class RolloutSessions:
    """Those of the rollouts that ask one model."""

    def __init__(self, begin: Callable[[str, str], str], end: Callable[[str, Told], Awaitable[None]]) -> None:
        """begin: from a group and a name within it, what requests in the session carry.  end: is given that again."""
        self._begin = begin
        self._end = end
        self._playing: dict[Rollout, str] = {}
        self._gatherings: WeakKeyDictionary[Gathering, str] = WeakKeyDictionary()
        self._num_gatherings: Counter[int] = Counter()
        """By step, so that a model that goes on from a step is asked with the same seeds."""

    def __repr__(self) -> str:
        return f"RolloutSessions(playing={len(self._playing)})"

    def of(self, rollout: Rollout, *, step: int) -> str:
        """What a request of the rollout carries. step: the model's own; at a gathering's first request it names the
        gathering for good. Raises UserError if the rollout has ended."""
        if rollout not in self._playing:
            gathering = rollout.gathering
            if gathering not in self._gatherings:
                self._num_gatherings[step] += 1
                self._gatherings[gathering] = f"s{step:06d}-{self._num_gatherings[step]:04d}"
            group_id = f"{self._gatherings[gathering]}-g{rollout.group_idx:04d}"
            carried = self._begin(group_id, f"m{rollout.member_idx:03d}")

            async def end(error: BaseException | None) -> None:
                del self._playing[rollout]
                await self._end(carried, ending_of(error))

            rollout.on_end(end)
            self._playing[rollout] = carried
        return self._playing[rollout]


def outside_name(step: int) -> str:
    """Of the session for whatever asks outside of rollouts."""
    return f"s{step:06d}-outside"


def ending_of(error: BaseException | None) -> Told:
    """How a rollout ended that raised this. None: it returned."""
    if error is None:
        return Told("ok", "its rollout has ended")
    return Told("failed" if isinstance(error, Exception) else "cancelled", f"{type(error).__name__}: {error}")
