"""Settings of models that agents ask besides the one that is trained.

Knows: plain values.  Knows not: HTTP, episodes.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ludus.settings import Settings


class ActorSettings(Settings):
    """A model that plays a part in episodes and is never trained: a simulated user, an opponent, a judge."""

    model: str
    """Its name at its address, or with the provider's, such as `openai/gpt-5-mini`."""
    base_url: str | None = None
    """Where Chat Completions are answered, such as http://localhost:8000/v1. None: the provider's own address."""
    api_key_env: str | None = None
    """Variable of the environment that holds the key, where the agents run. None: the provider's, or no key."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request, such as {temperature: 0.7, max_tokens: 200}."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Of one answer, with all attempts."""
    num_retries: int = Field(default=4, ge=0)
    """How often a server that is busy, broken or unreachable is asked again."""
