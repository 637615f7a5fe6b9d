"""Limits of a session: turns, sampled tokens, time. A request beyond them is refused with a typed 400, never a 429.

Knows: counts and the clock it is given.  Knows not: engines, requests.

A 429 would make SDKs wait and try again, but a used-up limit does not come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.errors import AgentError, UserError

LIMIT_CODES = ("turn_limit", "token_limit", "context_length_exceeded")
"""Codes of the errors for a session that has reached a limit of its size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may use. None, for each of them: no limit."""

    max_turns: int | None = None
    max_tokens: int | None = None
    """Sampled tokens of all turns together."""
    deadline_at: float | None = None
    """The time.monotonic() after which no token is sampled."""

    def __post_init__(self) -> None:
        for name, value in (("max_turns", self.max_turns), ("max_tokens", self.max_tokens)):
            if value is not None and value < 0:
                raise UserError(f"{name}={value} must be 0 or more, or None for no limit")

    def check(self, *, num_turns: int, num_asked: int, num_tokens: int, now: float) -> None:
        """Raises AgentError with status 400 and the limit's code unless `num_asked` more turns may begin."""
        if self.deadline_at is not None and now >= self.deadline_at:
            raise deadline_error()
        if self.max_turns is not None and num_turns + num_asked > self.max_turns:
            raise AgentError(
                f"this session may have {self.max_turns} model calls, has had {num_turns} and was asked for "
                f"{num_asked} more; end the episode",
                code="turn_limit",
            )
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            raise token_limit_error(self)

    def tokens_left(self, num_tokens: int) -> int | None:
        """Tokens that may still be sampled after `num_tokens`; None without a limit."""
        return None if self.max_tokens is None else max(0, self.max_tokens - num_tokens)


NO_LIMITS = Limits()


def deadline_error() -> AgentError:
    return AgentError("this session's time is used up; end the episode", code="deadline")


def token_limit_error(limits: Limits) -> AgentError:
    return AgentError(
        f"this session may sample {limits.max_tokens} tokens and has sampled them; end the episode", code="token_limit"
    )
