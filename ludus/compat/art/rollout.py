"""Which rollout is playing: a context variable that clients of a model read, so that each rollout is recorded apart.

Knows: rollouts by number, what is to be done when one ends.  Knows not: sessions, models, trajectories.
Invariant: what is registered with `on_end` runs exactly once, however the rollout ends.
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
"""Told what the rollout raised. None: it returned."""


@dataclass(eq=False)
class Gathering:
    """Rollouts that were gathered together; members of one gathering have different numbers."""


@dataclass(eq=False, slots=True)
class Rollout:
    """One run of a user's rollout function."""

    gathering: Gathering
    group_idx: int
    member_idx: int
    has_ended: bool = False
    """What it left running may go on, and is not part of it any more."""
    _endings: list[OnEnd] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Rollout(group={self.group_idx}, member={self.member_idx})"

    def on_end(self, ending: OnEnd) -> None:
        """Await `ending` once the rollout has ended. Raises UserError if it has."""
        if self.has_ended:
            raise UserError(f"{self!r} has ended; what it left running cannot ask the model in its name any more")
        self._endings.append(ending)

    async def end(self, error: BaseException | None) -> None:
        """Run what was registered, last first."""
        self.has_ended = True
        while self._endings:
            await self._endings.pop()(error)


_current: contextvars.ContextVar[Rollout | None] = contextvars.ContextVar("ludus_rollout", default=None)


def current_rollout() -> Rollout | None:
    """The rollout that the caller plays in, or was begun in if that has ended. None: none."""
    return _current.get()


async def play_rollout(awaitable: Awaitable[ResultT], rollout: Rollout) -> ResultT:
    """What `awaitable` returns, played as `rollout`; everything that it awaits or starts is inside of it."""
    with bound(_current, rollout):
        try:
            result = await awaitable
        except BaseException as error:
            # Cancelled or failed: what was recorded must still be closed, and that may take the engine a moment.
            await asyncio.shield(rollout.end(error))
            raise
        await rollout.end(None)
        return result
