"""What agents need for the length of a run: the gateway, the thread they run on, and HTTP clients between the two.

Knows: how these three are started and stopped.  Knows not: episodes, rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ludus.agents.adapter import EpisodeContext, EpisodeInfo
from ludus.agents.http_clients import SharedClients
from ludus.agents.settings import ActorSettings
from ludus.agents.thread import AgentThread
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import ClientFactory


class AgentRuntime:
    """Everything between an agent and the recorder. Use as a context manager."""

    def __init__(self, recorder: Recorder, server: GatewayServer, *, host: str = "127.0.0.1") -> None:
        """host: the address of this machine at which agents reach the gateway."""
        self.recorder = recorder
        self._host = host
        self.agents = AgentThread()
        self._server = server
        self._clients: ClientFactory | None = None
        """None: not entered yet."""
        self._shared = SharedClients()

    def __repr__(self) -> str:
        return f"AgentRuntime({self._server!r}, {self.agents!r})"

    def __enter__(self) -> AgentRuntime:
        self._server.start(self._host)
        self.agents.__enter__()
        self._clients = ClientFactory(self._server)
        return self

    def __exit__(self, *error: object) -> None:
        if self._clients is not None:
            self.agents.submit(self._clients.aclose())
            self.agents.submit(self._shared.aclose())
        self.agents.__exit__(*error)
        self._server.stop()

    @property
    def keys(self) -> SessionKeys:
        """The keys of the sessions that agents can reach through the gateway."""
        return self._server.keys

    @contextmanager
    def context(
        self, session: Session, key: str, info: EpisodeInfo, actors: Mapping[str, ActorSettings] | None = None
    ) -> Iterator[EpisodeContext]:
        """The context with which an agent reaches the session of this key, for the length of the block.

        actors: other models that take part in the episode. None: there are none.
        """
        assert self._clients is not None, "the runtime has been entered"
        client = self._clients.open()
        try:
            yield EpisodeContext(
                self._server.url_for(key),
                key,
                client,
                session,
                info,
                deadline_at=session.spec.limits.deadline_at,
                clients=self._shared,
                actors=actors or {},
            )
        finally:
            self.agents.submit(client.aclose())  # nobody waits: the agent may block its thread still
