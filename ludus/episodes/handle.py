"""A handle on an open session: its key, its rewards, when it was used.

Knows: its spec, its rewards, when it was used.  Knows not: engines, who keeps it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ludus.episodes.reward import RewardSheet
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.types import Episode


@dataclass(slots=True, eq=False, weakref_slot=True)
class Handle:
    """An open session, until its episode is made."""

    session: Session
    is_given: bool = True
    """It was opened explicitly. False: by the first request with an unknown key."""
    key: bytes = b""
    """Digest of its key."""
    opened_at: float = 0.0
    """Unix time in seconds."""
    used_at: float = 0.0
    """When the last request came for it, by the clock of its `SessionKeys`."""
    rewards: RewardSheet = field(default_factory=RewardSheet)
    episode: Episode | None = None
    """None: it has not ended, or was not kept yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is kept or rewarded; never while awaiting."""

    def __repr__(self) -> str:
        return f"Handle({self.session!r}, rewards={len(self.rewards.by_turn)})"

    @property
    def spec(self) -> SessionSpec:
        return self.session.spec

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def is_full(self) -> bool:
        return self.spec.most_turns is not None and self.session.stats().num_turns >= self.spec.most_turns
