"""DAPO's soft overlong punishment: a penalty for answers close to the maximum length.

Knows: lengths of answers.  Knows not: rewards, turns.
"""

from __future__ import annotations

import pydantic

from ludus.errors import ConfigError
from ludus.settings import Settings


class OverlongSettings(Settings):
    """A penalty on the reward of long answers."""

    tokens: int = pydantic.Field(ge=1)
    """The penalty rises over the last so many tokens before the maximum length."""
    penalty_factor: float = pydantic.Field(default=1.0, gt=0)
    """The penalty of an answer of maximum length."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """The maximum length. None: `gconfig.max_new_tokens`."""

    def of_length(self, max_new_tokens: int | None) -> OverlongSettings:
        """With `max_tokens` filled in, if it is not given. Raises ConfigError if it is not known, or less than
        `tokens`."""
        longest = max_new_tokens if self.max_tokens is None else self.max_tokens
        if longest is None:
            raise ConfigError("overlong.max_tokens must be given, or gconfig.max_new_tokens: the longest answer")
        if self.tokens > longest:
            raise ConfigError(f"overlong.tokens={self.tokens} must be at most the longest answer, {longest} tokens")
        return self.model_copy(update={"max_tokens": longest})


def overlong_penalty(num_tokens: int, settings: OverlongSettings) -> float:
    """The penalty of an answer of `num_tokens`: 0 up to `max_tokens` - `tokens`, then rising linearly to
    `penalty_factor`.

    Source: DAPO (arXiv 2503.14476) eq. 13, times the factor, as in verl.
    """
    assert settings.max_tokens is not None, "`of_length` gave it"
    excess = num_tokens - (settings.max_tokens - settings.tokens)
    return settings.penalty_factor * min(max(excess / settings.tokens, 0.0), 1.0)
