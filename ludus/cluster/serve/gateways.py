"""One model's gateway for clients elsewhere: sessions by the names that clients give them.

Knows: session names, idleness.  Knows not: HTTP beyond one header, keys, what becomes of a session that has ended.
Rules: the first request under a name opens a session; requests without a name share one; a session that nobody asks
for too long, or whose client has ended it, gets no more turns, and its name is free.

    x-ludus-session: CLIENT:GROUP/NAME    one rollout's own; those of a group begin alike, which is computed once
    x-ludus-session: CLIENT:NAME          shared: several trajectories may have turns in it

CLIENT keeps the names of clients apart, and may be left out. The session's id, and with it its seed, is the rest.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send

from ludus.cluster.serve.wire import SESSION
from ludus.episodes.episodes import IDLE_S, MAX_OPEN_TURNS
from ludus.episodes.handle import Handle, SessionSpec
from ludus.episodes.keys import Clock, SessionKeys
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.gateway.app import GatewayOptions, build_app

SHARED = "shared"
"""Name of the session of all requests that name none."""
_WORD = "[A-Za-z0-9._-]{1,128}"
_NAME = re.compile(f"({_WORD}:)?(?:(?P<group>{_WORD})/)?(?P<name>{_WORD})")


class SessionBook(Protocol):
    """Opens the sessions of one model and keeps what they record. Called from any thread."""

    def open(self, session_id: str, *, is_shared: bool = False, group_id: str | None = None) -> Session:
        """A session with this id, or one that goes on from it where it was used before; its seed is that of the id.

        is_shared: several trajectories may have turns in it.
        """

    async def end(self, session_id: str, error: BaseException | None = None) -> None:
        """The session gets no more turns. error: what its rollout raised; None: it returned."""


class RolloutError(Exception):
    """What a client says that its rollout raised."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    id: str
    seat: Handle


class ModelGateway:
    """The gateway of one model. Its application and its coroutines run on one loop."""

    def __init__(
        self, book: SessionBook, model_name: str, *, clock: Clock = time.monotonic, idle_s: float = IDLE_S
    ) -> None:
        """idle_s: a session that nobody asks for so long is ended."""
        self._book = book
        self._clock = clock
        self._idle_s = idle_s
        self._open: dict[str, _Open] = {}
        self._retired: list[_Open] = []
        """Shared sessions that are full; they end at the next sweep."""
        self._sessions = SessionKeys(clock)
        self._gateway = build_app(self._sessions, GatewayOptions(model_name=model_name, open_mode=self._open_session))

    def __repr__(self) -> str:
        return f"ModelGateway({self._book!r}, open={len(self._open)})"

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The model's protocols; the name of the session in place of the server's key."""
        names = [value.decode("latin-1") for name, value in scope["headers"] if name == SESSION.encode()]
        name = names[0] if names else SHARED
        if not _NAME.fullmatch(name):
            raise AgentError(
                f"{SESSION}={name!r:.400} must be NAME, GROUP/NAME, or CLIENT: before either; each a word of at most "
                "128 letters, digits and . _ -",
                code="invalid_value",
                param=SESSION,
            )
        others = [(key, value) for key, value in scope["headers"] if key not in (b"authorization", b"x-api-key")]
        headers = [*others, (b"authorization", f"Bearer {name}".encode())]
        await self._gateway({**scope, "headers": headers}, receive, send)

    async def end(self, name: str, error: BaseException | None = None) -> None:
        """The session of that name gets no more turns; one that is not open has none."""
        found = self._open.pop(name, None)
        if found is not None:
            self._sessions.remove(name)
            await self._book.end(found.id, error)

    async def expire(self) -> None:
        """Ends the sessions that nobody has asked for too long."""
        while self._retired:
            await self._book.end(self._retired.pop().id)
        now = self._clock()
        for name, held in list(self._open.items()):
            if now - held.seat.used_at >= self._idle_s and held.seat.session.stats().num_running == 0:
                await self.end(name)

    def _open_session(self, name: str) -> Handle:
        if name in self._open:  # it is full
            self._retired.append(self._open.pop(name))
        found = _NAME.fullmatch(name)
        assert found is not None, "names are checked when they arrive"
        group, own = found["group"], found["name"]
        session_id = own if group is None else f"{group}-{own}"
        session = self._book.open(session_id, is_shared=group is None, group_id=group)
        spec = SessionSpec(session.id, most_turns=MAX_OPEN_TURNS if group is None else None)
        seat = Handle(spec, session)
        self._open[name] = _Open(session.id, seat)
        self._sessions.bind(name, seat)
        return seat
