"""The specification that a session is opened with.

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
    """The specification of a session; every field has a default."""

    id: str | None = None
    """None: one is made."""
    task_id: str | None = None
    """None: the id of its group, or its own."""
    group_id: str | None = None
    """None: it belongs to no group."""
    group_size: int | None = None
    """How many sessions the group will have. None: not known."""
    agent: str = ""
    """Tag of the agent, for requests that do not name one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    sampling: Sampling = _OWN_DISTRIBUTION
    """Defaults for fields that a request does not set. Its seed is the session's seed; None there: derived from the
    id."""
    pinned: Collection[str] = ()
    """Fields of `sampling` that a request cannot change."""
    step: int | None = None
    """The training step that asked for it. None: no step did."""
    is_eval: bool = False
    recall: Recall | None = None
    """Answers sampled for it before the run was killed. None: there are none."""
    most_turns: int | None = None
    """After so many turns its key is given a new session, if unknown keys may open sessions. None: never."""
