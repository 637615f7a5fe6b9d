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

from ludus.compat.art.rollout import Gathering, Rollout, current_rollout
from ludus.episodes.outcome import Reported


class RolloutSessions:
    """Those of the rollouts that ask one model, and one for whatever asks outside of rollouts."""

    def __init__(
        self,
        step: Callable[[], int],
        begin: Callable[[str | None, str], str],
        end: Callable[[str, Reported], Awaitable[None]],
    ) -> None:
        """step: the model's own, now.  begin: from a group (None: of none) and a name within it, what requests in the
        session carry.  end: is given that again."""
        self._step = step
        self._begin = begin
        self._end = end
        self._playing: dict[Rollout, str] = {}
        self._gatherings: WeakKeyDictionary[Gathering, str] = WeakKeyDictionary()
        self._num_gatherings: Counter[int] = Counter()
        """By step, so that a model that goes on from a step is asked with the same seeds."""
        self.outside = begin(None, f"s{step():06d}-outside")
        """What requests outside of rollouts carry."""

    def __repr__(self) -> str:
        return f"RolloutSessions(playing={len(self._playing)})"

    def now(self) -> str:
        """What a request that is made now carries. Raises UserError if its rollout has ended."""
        rollout = current_rollout()
        if rollout is None:
            return self.outside
        if rollout not in self._playing:
            carried = self._begin(self._group_id(rollout), f"m{rollout.member_idx:03d}")

            async def end(error: BaseException | None) -> None:
                del self._playing[rollout]
                await self._end(carried, ending_of(error))

            rollout.on_end(end)
            self._playing[rollout] = carried
        return self._playing[rollout]

    def _group_id(self, rollout: Rollout) -> str:
        """The step at a gathering's first request names the gathering for good."""
        if rollout.gathering not in self._gatherings:
            step = self._step()
            self._num_gatherings[step] += 1
            self._gatherings[rollout.gathering] = f"s{step:06d}-{self._num_gatherings[step]:04d}"
        return f"{self._gatherings[rollout.gathering]}-g{rollout.group_idx:04d}"


def ending_of(error: BaseException | None) -> Reported:
    """How a rollout ended that raised this. None: it returned."""
    if error is None:
        return Reported("ok", "its rollout has ended")
    return Reported("failed" if isinstance(error, Exception) else "cancelled", f"{type(error).__name__}: {error}")
