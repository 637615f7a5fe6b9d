"""A gateway in front of written answers, and an engine that stops halfway until a test lets it go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.base import Engine, OnTokens
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episodes import Episodes
from ludus.episodes.keys import SessionKeys
from ludus.episodes.names import UNNAMED, ModelNames
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.text.chat import ChatText
from ludus.types import Call, Sampled, TokenChunk


class GatedEngine:
    """Hands over the first tokens of each answer, then waits for `open_gate` or an abort. Else a ScriptedEngine."""

    def __init__(self, inner: ScriptedEngine, *, num_free: int) -> None:
        self._inner = inner
        self._num_free = num_free
        self._gates: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._aborted: set[str] = set()
        self._is_open = False
        self.is_waiting = threading.Event()
        self.was_aborted = threading.Event()

    @property
    def context_length(self) -> int:
        return self._inner.context_length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        whole = await self._inner.generate(call)
        gate = asyncio.Event()
        self._gates[call.id] = (asyncio.get_running_loop(), gate)
        for i in range(len(whole.token_ids)):
            if i == self._num_free and not self._is_open:
                self.is_waiting.set()
                await gate.wait()
            if call.id in self._aborted:
                self.was_aborted.set()
                return Sampled(whole.token_ids[:i], whole.logprobs[:i], whole.versions[:i], "abort", whole.seed)
            if on_tokens is not None:
                one = slice(i, i + 1)
                on_tokens(TokenChunk(whole.token_ids[one], whole.logprobs[one], whole.versions[one]))
        return whole

    async def abort(self, call_id: str) -> None:
        self._aborted.add(call_id)
        self._release(call_id)

    def open_gate(self) -> None:
        """From any thread: all answers go on, later ones do not stop."""
        self._is_open = True
        for call_id in tuple(self._gates):
            self._release(call_id)

    def close_gate(self) -> None:
        """Later answers stop again."""
        self._is_open = False

    def _release(self, call_id: str) -> None:
        if call_id in self._gates:
            loop, gate = self._gates[call_id]
            loop.call_soon_threadsafe(gate.set)


@dataclass
class SessionManager:
    """A running gateway and what stands behind it."""

    server: GatewayServer
    sessions: SessionKeys
    recorder: Recorder
    engine: Any

    def open(self, session_id: str = "s1", **options: Any) -> tuple[str, Session]:
        """The base URL of a new session, and the session."""
        session = self.recorder.open(SessionSpec(session_id, **options))
        return self.server.url_for(self.sessions.add(session)), session


OpenSessions = Callable[..., SessionManager]


@pytest.fixture(scope="session")
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder, chat_template="chatml-tools")


@pytest.fixture(scope="session")
def shared_server() -> Iterator[GatewayServer]:
    """One server for all tests that leave it as it is: starting and stopping one takes longer than most tests."""
    with GatewayServer(SessionKeys()) as server:
        yield server


@pytest.fixture
def open_sessions(text: ChatText, shared_server: GatewayServer) -> Iterator[OpenSessions]:
    """A gateway with written answers; num_free stops every answer after so many tokens, until the gate opens.

    own: a server of the test's own, to stop or change; options of a gateway imply it.
    """
    with ExitStack() as stack:

        def make(
            answers: Any,
            *,
            num_free: int | None = None,
            opens: bool = False,
            own: bool = False,
            names: ModelNames = UNNAMED,
            **options: Any,
        ) -> SessionManager:
            engine: Any = ScriptedEngine(answers, text.tokenizer, context_length=options.pop("context_length", 2000))
            if num_free is not None:
                engine = GatedEngine(engine, num_free=num_free)
            recorder = Recorder(_checked(engine), text, names=names)
            sessions = SessionKeys()
            if opens:
                options["open_mode"] = Episodes(recorder, keys=sessions).open_for_key
            if not options and not own:
                return SessionManager(shared_server, shared_server.keys, recorder, engine)
            server = stack.enter_context(GatewayServer(sessions, GatewayOptions(**options)))
            return SessionManager(server, sessions, recorder, engine)

        yield make


def _checked(engine: Engine) -> Engine:
    return engine
