"""Statistics of a session: its size, and why its token paths forked.

Knows: counts and reasons.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus.types import ForkReason


@dataclass(frozen=True, slots=True)
class SessionStats:
    """A session so far."""

    num_turns: int
    num_tokens: int
    """Sampled tokens, those of answers in flight included."""
    num_running: int
    """Answers in flight."""
    num_nodes: int
    """Nodes of the token graph."""
    num_encoded_chars: int
    """Characters of prompts that were tokenized. Without forks that is the length of the rendered conversation."""
    num_rendered_messages: int
    """Messages that were rendered with the chat template."""
    forks: Mapping[ForkReason, int]
    refused: Mapping[str, int]
    """Number of refused requests, by the code of their error."""
