"""What a session is opened with.

Knows: names, limits, sampling.  Knows not: engines, who keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.recall import Recall
from ludus.types import Sampling

_OWN_DISTRIBUTION = Sampling()


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a session is opened with; every field has a default."""

    id: str | None = None
    """None: one is made."""
    task_id: str | None = None
    """None: that of its group, or its own."""
    group_id: str | None = None
    """None: it belongs to no group."""
    group_size: int | None = None
    """Sessions that the group will have. None: nobody said."""
    agent: str = ""
    """Tag of the agent that asks, where a request names none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    sampling: Sampling = _OWN_DISTRIBUTION
    """What a request gets where it asks for nothing; its seed is the session's. None there: one is derived from the
    id."""
    pinned: Collection[str] = ()
    """Fields of `sampling` that a request cannot change."""
    step: int | None = None
    """The training step that asked for it. None: none did."""
    is_eval: bool = False
    recall: Recall | None = None
    """What was sampled for it in an earlier life of the run. None: nothing was."""
    most_turns: int | None = None
    """After so many its key is given a new session, where unknown keys open one. None: never."""
