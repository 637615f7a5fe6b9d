"""One model's gateway for clients elsewhere: sessions by the names that clients give them.

Knows: session names.  Knows not: where in a request they stand, keys, what becomes of a session that has ended.
Rules: the first request under a name opens a session; requests without a name share one; a session that nobody asks
for too long, or whose client has ended it, gets no more turns, and its name is free.

    CLIENT:GROUP/NAME    one rollout's own; those of a group begin alike, which is computed once
    CLIENT:NAME          shared: several trajectories may have turns in it

CLIENT keeps the names of clients apart, and may be left out. The session's id, and with it its seed, is the rest.
"""

from __future__ import annotations

import re

from starlette.types import Receive, Scope, Send

from ludus.cluster.serve.wire import SESSION
from ludus.episodes.episodes import MAX_OPEN_TURNS, Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.outcome import Ending
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.gateway.app import GatewayOptions, build_app

SHARED = "shared"
"""Name of the session of all requests that name none."""
_WORD = "[A-Za-z0-9._-]{1,128}"
_NAME = re.compile(f"({_WORD}:)?(?:(?P<group>{_WORD})/)?(?P<name>{_WORD})")


class ModelGateway:
    """The gateway of one model. Its application and its coroutines run on one loop."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        options = GatewayOptions(model_names=episodes.model_list, open_mode=self._open_session)
        self._gateway = build_app(episodes.keys, options)

    def __repr__(self) -> str:
        return f"ModelGateway({self.episodes!r})"

    async def app(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The model's protocols; the name of the session in place of the server's key."""
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

    async def end(self, name: str, ending: Ending) -> None:
        """The session of that name gets no more turns; one that is not open has none."""
        handle = self.episodes.keys.get(name)
        if handle is not None:
            self.episodes.keys.release(handle)  # the name is free at once
            await self.episodes.end(handle, ending)

    def _open_session(self, name: str) -> Handle:
        found = _NAME.fullmatch(name)
        assert found is not None, "names are checked when they arrive"
        group, own = found["group"], found["name"]
        if group is None:
            return self.episodes.open_for_key(name, SessionSpec(own, most_turns=MAX_OPEN_TURNS))
        return self.episodes.open_for_key(name, SessionSpec(f"{group}-{own}", group_id=group))
