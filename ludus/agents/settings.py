"""Settings of models that agents use in addition to the trained one.

Knows: plain values.  Knows not: HTTP, episodes.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ludus.settings import Settings


class ActorSettings(Settings):
    """A model with a role in episodes that is never trained: a simulated user, an opponent, a judge."""

    model: str
    """Its name at its address, or with the provider's name, such as `openai/gpt-5-mini`."""
    base_url: str | None = None
    """Address that serves Chat Completions, such as http://localhost:8000/v1. None: the provider's own."""
    api_key_env: str | None = None
    """Environment variable with the key, where the agents run. None: the provider's variable, or no key."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request, such as {temperature: 0.7, max_tokens: 200}."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Time limit of one answer, all attempts included."""
    num_retries: int = Field(default=4, ge=0)
    """How often a busy, broken or unreachable server is asked again."""
