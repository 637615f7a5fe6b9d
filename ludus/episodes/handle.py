"""What a session is opened with, and what is known of an open one.

Knows: names, limits, sampling, when it was used.  Knows not: engines, who keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.reward import RewardSheet
from ludus.episodes.session import Session
from ludus.types import Episode, Sampling

OWN_DISTRIBUTION = Sampling()


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
    sampling: Sampling = OWN_DISTRIBUTION
    """What a request gets where it asks for nothing; its seed is the session's. None there: one is derived from the
    id."""
    pinned: Collection[str] = ()
    """Fields of `sampling` that a request cannot change."""
    step: int | None = None
    """The training step that asked for it. None: none did."""
    is_eval: bool = False
    most_turns: int | None = None
    """After so many its key is given a new session, where unknown keys open one. None: never."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Handle:
    """One session that can be reached, until its episode is there."""

    spec: SessionSpec
    session: Session
    is_given: bool = True
    """It was opened by name; else by the first request of an unknown key."""
    key: bytes = b""
    """Digest of the key that names it."""
    opened_at: float = 0.0
    """Unix time in seconds."""
    used_at: float = 0.0
    """When a request last named it, by the clock of its `SessionKeys`."""
    rewards: RewardSheet = field(default_factory=RewardSheet)
    episode: Episode | None = None
    """None: it has not ended, or is not kept yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is kept or rewarded; never while awaiting."""

    def __repr__(self) -> str:
        return f"Handle({self.session!r}, rewards={len(self.rewards.by_turn)})"

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def is_full(self) -> bool:
        return self.spec.most_turns is not None and self.session.stats().num_turns >= self.spec.most_turns
