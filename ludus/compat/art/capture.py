"""Captures trajectories of agents that build none themselves: from their requests and answers, or by
`yield_trajectory`.

Knows: requests and answers, two context variables.  Knows not: HTTP, tokens.
Invariant: a captured trajectory holds every answer once, appended to the longest history that the request continues, or
in a new history if there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, overload

from ludus.compat.art.choice import Messages, Tools, check_item, message_of
from ludus.compat.art.context import bound
from ludus.compat.art.exchanges import listening
from ludus.compat.art.trajectory import History, Trajectory
from ludus.errors import UserError


class Capture:
    """A trajectory to which every exchange is added."""

    def __init__(self) -> None:
        self.trajectory = Trajectory()
        self._conversations: list[tuple[History, Messages]] = []
        """Each history with its messages, cached for comparisons."""

    def add(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Adds the choices of one answer."""
        asked = [message_of(message) for message in request.get("messages") or ()]
        tools = request.get("tools") or None
        found = self._continued(asked, tools)
        for number, written in enumerate(answer.get("choices") or ()):
            choice = check_item(written, f"choices[{number}] of the answer")
            if number == 0 and found is not None:
                history, known = found
                new = asked[len(known) :]
            else:  # other answers to the same request become separate branches
                history, known, new = self._begin(tools), [], asked
                self._conversations.append((history, known))
            history.messages_and_choices.extend([*new, choice])
            known.extend([*new, message_of(choice)])

    def _continued(self, asked: Messages, tools: Tools | None) -> tuple[History, Messages] | None:
        """The longest history that the request continues. None: there is none."""
        fitting = [
            (history, known)
            for history, known in self._conversations
            if history.tools == tools and len(known) < len(asked) and asked[: len(known)] == known
        ]
        return max(fitting, key=lambda each: len(each[1]), default=None)

    def _begin(self, tools: Tools | None) -> History:
        if not self._conversations:
            self.trajectory.tools = tools
            return self.trajectory
        history = History(tools=tools)
        self.trajectory.additional_histories.append(history)
        return history


_captures: ContextVar[Capture | None] = ContextVar("ludus_capture", default=None)
_yielded: ContextVar[list[Trajectory] | None] = ContextVar("ludus_yielded", default=None)


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being captured, to which later exchanges are added. None: nothing is being captured.

    required: raise UserError instead of returning None.
    """
    capture = _captures.get()
    if capture is None and required:
        raise UserError("no trajectory is captured here; run this inside `await capture_auto_trajectory(...)`")
    return None if capture is None else capture.trajectory


async def capture_auto_trajectory(coroutine: Awaitable[object]) -> Trajectory:
    """Run the coroutine; returns a trajectory of all exchanges of clients of a `Model` meanwhile.

    The coroutine sets the reward through `auto_trajectory()`, or the caller does. Its own result is discarded.
    """
    with capturing() as capture:
        await coroutine
    return capture.trajectory


@contextmanager
def capturing() -> Iterator[Capture]:
    """Capture exchanges inside the block."""
    with bound(_captures, Capture()) as capture, listening(capture.add):
        yield capture


def yield_trajectory(trajectory: Trajectory) -> None:
    """Pass a trajectory to the caller of `capture_yielded_trajectory`, past functions that return something else.

    Raises UserError outside of `capture_yielded_trajectory`, or if a trajectory was yielded before.
    """
    yielded = _yielded.get()
    if yielded is None:
        raise UserError("nobody waits for a trajectory; run this inside `await capture_yielded_trajectory(...)`")
    if yielded:
        raise UserError("a trajectory was yielded before; put its conversation into additional_histories instead")
    yielded.append(trajectory)


async def capture_yielded_trajectory(coroutine: Awaitable[object]) -> Trajectory:
    """Run the coroutine; returns the trajectory that it passed to `yield_trajectory`. Its own result is discarded.

    Raises UserError if it yielded none.
    """
    found: list[Trajectory] = []
    with bound(_yielded, found):
        await coroutine
    if not found:
        raise UserError("no trajectory was yielded; call yield_trajectory(trajectory) once in the coroutine")
    return found[0]
