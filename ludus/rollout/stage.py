"""Where agents play: the gateway, the thread of the agents, and the client between them, for the length of a run.

Knows: how these three are started and stopped.  Knows not: episodes, rewards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ludus.agents.thread import AgentThread
from ludus.agents.workflow import EpisodeContext
from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import async_client
from ludus.record.recorder import RecordedSession, Recorder


class Stage:
    """Everything between an agent and the recorder. Use as a context manager."""

    def __init__(self, recorder: Recorder, server: GatewayServer) -> None:
        self.recorder = recorder
        self.agents = AgentThread()
        self._server = server
        self._client: Any = None
        """Made when the stage is entered."""

    def __repr__(self) -> str:
        return f"Stage({self._server!r}, {self.agents!r})"

    def __enter__(self) -> Stage:
        self._server.start()
        self.agents.__enter__()
        self._client = async_client(self._server)
        return self

    def __exit__(self, *error: object) -> None:
        self.agents.submit(self._client.aclose())
        self.agents.__exit__(*error)
        self._server.stop()

    @contextmanager
    def seat(self, session: RecordedSession) -> Iterator[EpisodeContext]:
        """What an agent needs to reach `session`, for the length of the block."""
        secret = self._server.sessions.add(session)
        try:
            yield EpisodeContext(base_url=self._server.url_for(secret), api_key=secret, http_client=self._client)
        finally:
            self._server.sessions.remove(secret)
