"""Who asks a hosted model: each rollout in a session of its own, whether it plays in this process or names itself.

Knows: rollouts, keys of sessions, one header.  Knows not: how a model is trained, tokens.
Invariants: every rollout is a session of its own; what asks outside of any rollout has one session for the model;
ids, and with them seeds, depend on the step and the order of gatherings alone.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ludus.agents.trajectory import Gathering, Rollout, current_rollout
from ludus.api.backends.hosted import HostedModel
from ludus.api.backends.wire import SESSION
from ludus.gateway.keys import Seat, new_key
from ludus.gateway.server import GatewayServer

IDLE_S = 3600.0
"""A session that names itself ends after so long without a request: longer than any tool call of an agent takes."""


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
    _named: dict[str, _Named] = field(default_factory=dict)
    """By the name that clients in other processes gave them."""
    _num_named: int = 0

    def __post_init__(self) -> None:
        session = self.hosted.book.open(f"s{self.hosted.step:06d}-outside", is_shared=True)
        self.outside_key = self.server.sessions.add(session)

    def __repr__(self) -> str:
        return f"ServedModel({self.hosted!r}, rollouts={len(self._keys)}, named={len(self._named)})"

    def headers(self) -> Mapping[str, str]:
        """Of a request that is made now, in this process."""
        rollout = current_rollout()
        if rollout is None:
            return {}
        if rollout not in self._keys:
            self._keys[rollout] = self._open(rollout)
        return {"authorization": f"Bearer {self._keys[rollout]}"}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The model's gateway, which also knows the header that names a session."""
        name = Headers(scope=scope).get(SESSION) if scope["type"] == "http" else None
        if name is not None:
            others = [each for each in scope["headers"] if each[0] != b"authorization"]
            scope = {**scope, "headers": [*others, (b"authorization", f"Bearer {self._key_of(name)}".encode())]}
        await self.server.app(scope, receive, send)

    async def sweep(self) -> None:
        """Ends the sessions that named themselves and are not needed any more: trained as a whole, or long idle."""
        now = self.server.sessions.clock()
        for name, named in list(self._named.items()):
            if self.hosted.book.is_settled(named.session_id) or now - named.seat.used_at > IDLE_S:
                del self._named[name]
                self.server.sessions.remove(named.key)
                await self.hosted.book.end(named.session_id)

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

    def _key_of(self, name: str) -> str:
        if name not in self._named:
            self._num_named += 1
            session_id = f"s{self.hosted.step:06d}-named-{self._num_named:06d}"
            # Nobody says when it ends, nor whether one trajectory alone has turns in it.
            session = self.hosted.book.open(session_id, is_shared=True)
            seat, key = Seat(session), new_key()
            self.server.sessions.seat(key, seat)
            self._named[name] = _Named(session.id, key, seat)
        return self._named[name].key


@dataclass(frozen=True, slots=True)
class _Named:
    session_id: str
    key: str
    seat: Seat
