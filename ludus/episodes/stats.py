"""What a session has come to: its size, and why its token paths forked.

Knows: counts and reasons.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus.types import ForkReason


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has come to so far."""

    num_turns: int
    num_tokens: int
    """Sampled tokens, those of answers in flight included."""
    num_running: int
    """Answers in flight."""
    num_nodes: int
    """Nodes of the token graph."""
    num_encoded_chars: int
    """Characters of prompts that were tokenized. Without forks they are those of the rendered conversation."""
    num_rendered_messages: int
    """Messages that went through the chat template."""
    forks: Mapping[ForkReason, int]
    refused: Mapping[str, int]
    """Requests that got no answer, by the code of their error."""
