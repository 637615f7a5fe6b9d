"""What an answer loses by being almost as long as it may be: DAPO's soft punishment.

Knows: lengths of answers.  Knows not: rewards, turns.
"""

from __future__ import annotations

import pydantic

from ludus.errors import ConfigError
from ludus.settings import Settings


class OverlongSettings(Settings):
    """The reward of an answer is shaped by its length."""

    tokens: int = pydantic.Field(ge=1)
    """The last tokens of the longest answer, over which the penalty rises."""
    penalty_factor: float = pydantic.Field(default=1.0, gt=0)
    """What the longest answer loses."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Of the longest answer. None: `gconfig.max_new_tokens`."""

    def of_length(self, max_new_tokens: int | None) -> OverlongSettings:
        """With the longest answer, where it is not given. Raises ConfigError if it is not known, or is shorter than
        `tokens`."""
        longest = max_new_tokens if self.max_tokens is None else self.max_tokens
        if longest is None:
            raise ConfigError("overlong.max_tokens must be given, or gconfig.max_new_tokens: the longest answer")
        if self.tokens > longest:
            raise ConfigError(f"overlong.tokens={self.tokens} must be at most the longest answer, {longest} tokens")
        return self.model_copy(update={"max_tokens": longest})


def overlong_penalty(num_tokens: int, settings: OverlongSettings) -> float:
    """What is taken off the reward of an answer of so many tokens; 0 for one shorter than the last `tokens`.

    It rises evenly to `penalty_factor`. Source: DAPO (arXiv 2503.14476) eq. 13, times the factor, as verl has it.
    """
    assert settings.max_tokens is not None, "`of_length` gave it"
    excess = num_tokens - (settings.max_tokens - settings.tokens)
    return settings.penalty_factor * min(max(excess / settings.tokens, 0.0), 1.0)
