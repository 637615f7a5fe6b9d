"""The current rollout: a context variable that clients of a model read, so that each rollout is recorded separately.

Knows: rollouts by number, callbacks at their end.  Knows not: sessions, models, trajectories.
Invariant: callbacks registered with `on_end` run exactly once, however the rollout ends.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ludus.compat.art.context import bound
from ludus.errors import UserError

ResultT = TypeVar("ResultT")
OnEnd = Callable[[BaseException | None], Awaitable[None]]
"""Called with the exception of the rollout. None: it returned."""


@dataclass(eq=False)
class Gathering:
    """Rollouts that are gathered together; each has another number."""


@dataclass(eq=False, slots=True)
class Rollout:
    """One run of a user's rollout function."""

    gathering: Gathering
    group_idx: int
    member_idx: int
    has_ended: bool = False
    """Whether it has ended. Tasks that it left running may continue, but no longer belong to it."""
    _endings: list[OnEnd] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Rollout(group={self.group_idx}, member={self.member_idx})"

    def on_end(self, ending: OnEnd) -> None:
        """Await `ending` once the rollout has ended. Raises UserError if it has."""
        if self.has_ended:
            raise UserError(f"{self!r} has ended; what it left running cannot ask the model in its name any more")
        self._endings.append(ending)

    async def end(self, error: BaseException | None) -> None:
        """Run the registered callbacks, the last one first."""
        self.has_ended = True
        while self._endings:
            await self._endings.pop()(error)


_current: contextvars.ContextVar[Rollout | None] = contextvars.ContextVar("ludus_rollout", default=None)


def current_rollout() -> Rollout | None:
    """The rollout in which the caller runs, or was started if that has ended. None: there is none."""
    return _current.get()


async def play_rollout(awaitable: Awaitable[ResultT], rollout: Rollout) -> ResultT:
    """Await `awaitable` as `rollout`, to which everything that it awaits or starts belongs; returns its result."""
    with bound(_current, rollout):
        try:
            result = await awaitable
        except BaseException as error:
            # Even if cancelled or failed, sessions must be closed, for which the engine may need a moment.
            await asyncio.shield(rollout.end(error))
            raise
        await rollout.end(None)
        return result
