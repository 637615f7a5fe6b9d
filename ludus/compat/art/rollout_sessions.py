"""Assigns a session to each rollout that asks a model, with a local or a remote backend.

Knows: rollouts, steps, how a rollout ended.  Knows not: models, what a session is.
Invariants: a session begins with its rollout's first request, and ends with the rollout; its name, which determines the
seed, depends only on the step and the order of gatherings, so that a repeated loop uses the same seeds with any
backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from ludus.compat.art.rollout import Gathering, Rollout, current_rollout
from ludus.episodes.outcome import Reported


class RolloutSessions:
    """The sessions of rollouts for one model, and one session for requests outside of rollouts."""

    def __init__(
        self,
        step: Callable[[], int],
        begin: Callable[[str | None, str], str],
        end: Callable[[str, Reported], Awaitable[None]],
    ) -> None:
        """step: returns the model's current step.  begin: opens a session for a group (None: no group) and a name
        within it; returns the session's key.  end: called with the key when the rollout has ended."""
        self._step = step
        self._begin = begin
        self._end = end
        self._playing: dict[Rollout, str] = {}
        self._gatherings: WeakKeyDictionary[Gathering, str] = WeakKeyDictionary()
        self._num_gatherings: Counter[int] = Counter()
        """By step, so that a model resumed from a step is asked with the same seeds."""
        self.outside = begin(None, f"s{step():06d}-outside")
        """Key of the session for requests outside of rollouts."""

    def __repr__(self) -> str:
        return f"RolloutSessions(playing={len(self._playing)})"

    def now(self) -> str:
        """The key for a request that is made now. Raises UserError if its rollout has ended."""
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
        """The id of the rollout's group, which contains the step at the gathering's first request."""
        if rollout.gathering not in self._gatherings:
            step = self._step()
            self._num_gatherings[step] += 1
            self._gatherings[rollout.gathering] = f"s{step:06d}-{self._num_gatherings[step]:04d}"
        return f"{self._gatherings[rollout.gathering]}-g{rollout.group_idx:04d}"


def ending_of(error: BaseException | None) -> Reported:
    """The ending of a rollout that raised `error`. None: it returned."""
    if error is None:
        return Reported("ok", "its rollout has ended")
    return Reported("failed" if isinstance(error, Exception) else "cancelled", f"{type(error).__name__}: {error}")
