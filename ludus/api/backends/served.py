"""Who asks a hosted model in this process: each rollout in a session of its own.

Knows: rollouts, keys of sessions.  Knows not: how a model is trained, tokens.
Invariants: every rollout is a session of its own; what asks outside of any rollout has one session for the model;
ids, and with them seeds, depend on the step and the order of gatherings alone.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ludus.agents.trajectory import Gathering, Rollout, current_rollout
from ludus.api.backends.hosted import HostedModel
from ludus.gateway.server import GatewayServer

_ENDED = "ended-rollout"


@dataclass(eq=False)
class ServedModel:
    """A model and the sessions in which it is asked."""

    hosted: HostedModel
    server: GatewayServer
    outside_key: str = field(init=False)
    """Of the session for whoever asks outside of rollouts."""
    _keys: dict[Rollout, str] = field(default_factory=dict)
    _names: weakref.WeakKeyDictionary[Gathering, str] = field(default_factory=weakref.WeakKeyDictionary)
    _num_gatherings: Counter[int] = field(default_factory=Counter)
    """By step, so that a model that goes on from a step is asked with the same seeds."""

    def __post_init__(self) -> None:
        session = self.hosted.book.open(f"s{self.hosted.step:06d}-outside", is_shared=True)
        self.outside_key = self.server.sessions.add(session)

    def __repr__(self) -> str:
        return f"ServedModel({self.hosted!r}, rollouts={len(self._keys)})"

    def headers(self) -> Mapping[str, str]:
        """Of a request that is made now, in this process."""
        rollout = current_rollout()
        if rollout is None:
            return {}
        if rollout.has_ended:  # the gateway says to what it left running that its session has
            return {"authorization": f"Bearer {_ENDED}"}
        if rollout not in self._keys:
            self._keys[rollout] = self._open(rollout)
        return {"authorization": f"Bearer {self._keys[rollout]}"}

    def _open(self, rollout: Rollout) -> str:
        group_id = f"{self._name(rollout.gathering)}-g{rollout.group_idx:04d}"
        session = self.hosted.book.open(f"{group_id}-m{rollout.member_idx:03d}", group_id=group_id)
        key = self.server.sessions.add(session)

        async def end(error: BaseException | None) -> None:
            self.server.sessions.remove(self._keys.pop(rollout))
            await self.hosted.book.end(session.id, error)

        rollout.on_end(end)
        return key

    def _name(self, gathering: Gathering) -> str:
        if gathering not in self._names:
            step = self.hosted.step
            self._num_gatherings[step] += 1
            self._names[gathering] = f"s{step:06d}-{self._num_gatherings[step]:04d}"
        return self._names[gathering]
