"""The interface of a frozen chat model: messages in, text and its cost out.

Knows: nothing of HTTP, of judges, of who serves the model.
Invariant: an answer is returned unchanged; the caller decides whether it is usable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = Mapping[str, Any]
WRONG_SETTINGS = frozenset({401, 403, 404})
"""HTTP statuses of a wrong key, model or address; retrying would not help."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of some calls. Usages can be added."""

    num_calls: int = 0
    num_cached: int = 0
    """Answers found in the cache on disk, which cost nothing."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    cost_usd: float | None = 0.0
    """None: unknown, as neither the endpoint nor the caller gave a price."""

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
    """A model's answer."""

    text: str
    usage: Usage
    is_cut: bool = False
    """Whether it was cut off at a limit of length."""


class ChatModel(Protocol):
    """A chat model. Safe to ask many times at once."""

    @property
    def identity(self) -> Json:
        """Everything besides the messages that its answers depend on, without the key."""
        ...

    async def ask(self, messages: Sequence[Json], *, name: str, schema: Json) -> ChatAnswer:
        """The model's answer. It is asked for JSON of `schema`, called `name`, but may not comply.

        Raises BackendError if there is no answer, UserError if the address, the key or the model is wrong.
        """
        ...

    async def aclose(self) -> None: ...
