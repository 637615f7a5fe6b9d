"""The gateway for agents inside this program: SDK clients that need no socket, and the record of their sessions.

Knows: the gateway in process, the SDKs' clients.  Knows not: groups, training.
Invariant: an agent gets the same answers, and the same is recorded, as over the network.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ludus.episodes.archive import Archive
from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.outcome import Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import UserError
from ludus.gateway.interactions import SessionRewards
from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import ClientFactory, sdk_http_module


class InProcessGateway:
    """A gateway inside this program. Use as a context manager."""

    def __init__(self, recorder: Recorder, archive: Archive | None = None) -> None:
        """archive: stores turns and episodes, such as a `RunArchive`. None: they are kept in memory only."""
        self.episodes = Episodes(recorder, archive)
        self._server = GatewayServer(self.episodes.keys)

    def __repr__(self) -> str:
        return f"InProcessGateway({self._server!r})"

    def __enter__(self) -> InProcessGateway:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def open(
        self, session_id: str | None = None, *, group_id: str | None = None, limits: Limits = NO_LIMITS
    ) -> SessionClient:
        """A new session; close it with `aclose` or as an async context manager. session_id: None makes one."""
        handle, key = self.episodes.open(SessionSpec(session_id, group_id=group_id, limits=limits))
        return SessionClient(self._server, self.episodes, handle, key)


class SessionClient(SessionRewards):
    """One session: SDK clients that belong to it, its rewards and its record."""

    def __init__(self, server: GatewayServer, episodes: Episodes, handle: Handle, key: str) -> None:
        super().__init__(handle.session, handle.rewards)
        self.server = server
        self._episodes = episodes
        self._handle = handle
        self._secret = key
        self._factories: list[ClientFactory] = []

    async def __aenter__(self) -> SessionClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's SDKs; it is also reachable over the network."""
        return self.server.url_for(self._secret)

    def openai(self, **options: Any) -> Any:
        """An `openai.AsyncOpenAI` that reaches the model without a socket. options: further arguments of it.

        Raises UserError if the SDK is not installed.
        """
        return self._client("openai", "AsyncOpenAI", self.base_url, options)

    def anthropic(self, **options: Any) -> Any:
        """An `anthropic.AsyncAnthropic`, otherwise as `openai`."""
        return self._client("anthropic", "AsyncAnthropic", self.base_url.removesuffix("/v1"), options)

    def _client(self, sdk: str, name: str, base_url: str, options: Mapping[str, Any]) -> Any:
        try:
            module = importlib.import_module(sdk)
        except ModuleNotFoundError:
            raise UserError(f"a client of {sdk} needs it: pip install {sdk}") from None
        factory = ClientFactory(self.server, sdk_http_module(sdk))
        self._factories.append(factory)
        make = getattr(module, name)
        return make(**{"base_url": base_url, "api_key": self._secret, "http_client": factory.open(), **options})

    def _give(self, value: object) -> None:
        has_ended = self._handle.episode is not None
        if not has_ended or self._episodes.archive is not None:
            self._episodes.reward(self.session.id, value)
        if has_ended:
            super()._give(value)

    async def aclose(self) -> None:
        """End the session; its record can still be read and rewarded."""
        await self._episodes.end(self._handle, Reported("ok", "its client was closed"))
        for factory in self._factories:
            await factory.aclose()
