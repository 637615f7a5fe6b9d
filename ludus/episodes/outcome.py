"""The ways in which an episode can end, and the outcome of each.

Knows: endings, limits that were reached, whether there was a reward.  Knows not: who played, who recorded.
Invariant: the same rule applies whether an agent of the run returned, a remote client reported how it went, or nothing
was reported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ludus.episodes.limits import LIMIT_CODES
from ludus.types import Outcome

DEADLINE_CODE = "deadline"
NO_TURN = (
    "the agent never called the model: no chat completion for it reached the base_url it was given "
    "(model='default' asks it, the name of its base or of a step those weights)"
)


@dataclass(frozen=True, slots=True)
class Returned:
    """An agent of the run returned."""

    value: object
    """Read by `reward.read`."""


@dataclass(frozen=True, slots=True)
class Raised:
    trace: str
    """The last frames of the user's own code, and the error."""
    codes: str
    """Codes and messages of the error and its causes."""


@dataclass(frozen=True, slots=True)
class Overdue:
    timeout_s: float
    blocked_by: str | None
    """What blocks the agents' event loop. None: nothing; the agent is waiting for something."""
    waits_at: str | None = None
    """The last frames of the user's own code, where the agent waits. None: not known."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that played the agent was lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The session's owner reported how it went."""

    kind: Literal["ok", "rejected", "failed", "cancelled"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """The session got no more requests."""

    idle_s: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The program that kept the session open has ended."""

    reason: str


Ending = Returned | Raised | Overdue | Cancelled | Lost | Reported | Idle | Closed


def outcome_of(
    ending: Ending,
    *,
    has_turns: bool,
    refused: Collection[str],
    is_rewarded: bool,
    is_rejected: bool = False,
    wrong: str | None = None,
) -> Outcome:
    """The outcome of a session with this ending.

    refused: codes of the errors with which its requests were refused.  is_rejected: its reward was None.
    wrong: what is wrong with its reward. None: nothing is.
    """
    match ending:
        case Lost(reason):
            return Outcome("lost", reason)
        case Cancelled(reason):
            return Outcome("cancelled", reason)
        case Overdue(timeout_s, blocked_by, waits_at):
            reason = f"the agent took longer than rollout.episode_timeout_s={timeout_s}"
            where = f"it waited here when it was ended:\n{waits_at}\n" if waits_at else ""
            return Outcome("timeout", where + reason + (f"; {blocked_by}" if blocked_by else ""))
        case Raised(trace, codes):
            return _outcome_of_error(trace, codes, refused)
        case Reported("rejected" | "failed" | "cancelled" as kind, reason):
            return Outcome(kind, reason)
        case Closed(reason) if not is_rewarded:
            return Outcome("cancelled", reason)
    if wrong is not None:
        return Outcome("failed", wrong)
    if is_rejected:
        return Outcome("rejected", "the agent returned None")
    if not has_turns:
        return Outcome("failed", NO_TURN)
    if isinstance(ending, Idle):  # if it has a reward, its agent had finished and only did not end the session
        return Outcome("truncated" if is_rewarded else "timeout", f"no request for {ending.idle_s:g} s")
    met = _met(refused)
    if met:
        return Outcome("truncated", f"the agent met a limit ({', '.join(met)}) and ended")
    return Outcome("ok", "" if isinstance(ending, Returned) else ending.reason)


def _outcome_of_error(trace: str, codes: str, refused: Collection[str]) -> Outcome:
    met = [code for code in _met(refused) if code in codes]
    if met:
        return Outcome("truncated", f"the agent raised because it had met a limit ({', '.join(met)}):\n{trace}")
    if DEADLINE_CODE in codes.split():
        return Outcome("timeout", f"the episode's time was used up:\n{trace}")
    return Outcome("failed", trace)


def _met(refused: Collection[str]) -> list[str]:
    return [code for code in LIMIT_CODES if code in refused]
