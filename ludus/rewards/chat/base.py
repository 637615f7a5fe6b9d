"""A frozen chat model: messages in, text out, and what that cost.

Knows: nothing of HTTP, of judges, of who serves the model.
Invariant: an answer that came is returned as it came; whether it is of use is the asker's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = Mapping[str, Any]
WRONG_SETTINGS = frozenset({401, 403, 404})
"""HTTP statuses of a wrong key, model or address; trying again would never help."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What some calls took. Usages add up."""

    num_calls: int = 0
    num_cached: int = 0
    """Answers that were found on disk, and cost nothing."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    cost_usd: float | None = 0.0
    """None: neither the endpoint nor the caller has said what a token costs."""

    def __add__(self, other: Usage) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.num_calls + other.num_calls,
            self.num_cached + other.num_cached,
            self.num_prompt_tokens + other.num_prompt_tokens,
            self.num_completion_tokens + other.num_completion_tokens,
            (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
        )


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What a model said."""

    text: str
    usage: Usage
    is_cut: bool = False
    """It met a limit of length; the rest is missing."""


class ChatModel(Protocol):
    """A model that is asked. Safe to ask many times at once."""

    @property
    def identity(self) -> Json:
        """What its answers depend on besides the messages; the key is no part of it."""
        ...

    async def ask(self, messages: Sequence[Json], *, name: str, schema: Json) -> ChatAnswer:
        """The model's answer, which it was asked to give as JSON of `schema`, called `name`; it may not have done so.

        Raises BackendError if it cannot be had, UserError if the address, the key or the model is wrong.
        """
        ...

    async def aclose(self) -> None: ...
