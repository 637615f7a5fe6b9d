"""Sessions of a model by the names that clients elsewhere give them: one each, shared, idle, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.cluster.serve.gateways import SHARED, ModelGateway
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import MemoryArchive
from ludus.episodes.episodes import MAX_OPEN_TURNS, Episodes
from ludus.episodes.keys import SessionKeys
from ludus.episodes.names import ModelNames
from ludus.episodes.outcome import Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.types import Episode


class Book(MemoryArchive):
    """Knows what was opened, and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[str, SessionSpec] = {}
        self.ended: list[tuple[str, int, str]] = []
        """Id, number of turns, outcome."""

    def fit(self, spec: SessionSpec) -> SessionSpec:
        own_id = str(spec.id)
        while own_id in self.opened:
            own_id += "-again"
        self.opened[own_id] = replace(spec, id=own_id)
        return self.opened[own_id]

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        self.ended.append((episode.id, len(episode.session.turns), episode.outcome.kind))
        super().keep(episode, spec)


class GatewayCase:
    """One model's gateway with a clock that a test sets."""

    def __init__(self, text: ChatText) -> None:
        self.now = 0.0
        engine = ScriptedEngine(lambda _: "7.", text.tokenizer)
        self.recorder = Recorder(engine, text, names=ModelNames("agent-001"))
        self.session_store = Book()
        self.gateway = self.make()

    def make(self) -> ModelGateway:
        keys = SessionKeys(clock=lambda: self.now)
        episodes = Episodes(
            self.recorder, self.session_store, keys=keys, idle_s=60, most_by_key=None, fit=self.session_store.fit
        )
        return ModelGateway(episodes)

    async def ask(self, name: str | None = None, gateway: ModelGateway | None = None) -> httpx.Response:
        transport = httpx.ASGITransport(partial((gateway or self.gateway).app, name or SHARED))
        headers = {"authorization": "Bearer the-servers-key"}
        async with httpx.AsyncClient(transport=transport, base_url="http://there") as http:
            body = {"model": "agent-001", "messages": [{"role": "user", "content": "Guess."}]}
            return await http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.fixture
def case(tokenizer_folder: Path) -> GatewayCase:
    return GatewayCase(ChatText.load(tokenizer_folder))


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


def test_a_name_is_a_session(case: GatewayCase) -> None:
    """Requests of one name are one session; GROUP/NAME is a rollout's own and of its group, all else is shared."""

    async def main() -> None:
        for name in ("c:g1/a", "c:g1/a", "c:g1/b", "d:g1/a", "c:mine", None, None):
            answer = await case.ask(name)
            assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "7."
            assert "x-ludus-ignored" not in answer.headers
        await case.gateway.episodes.aclose("over")

    run(main)
    num_turns = {session_id: number for session_id, number, _ in case.session_store.ended}
    assert num_turns == {"g1-a": 2, "g1-b": 1, "g1-a-again": 1, "mine": 1, "shared": 2}
    rollout, shared = (None, "g1"), (MAX_OPEN_TURNS, None)
    about = [(spec.most_turns, spec.group_id) for spec in case.session_store.opened.values()]
    assert about == [rollout, rollout, rollout, shared, shared]


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "/a", "a/", "a" * 129, "å", "a:", ":a", "a:b:c"])
def test_a_name_that_cannot_be_is_refused(case: GatewayCase, name: str) -> None:
    """Before anything is opened."""

    async def main() -> None:
        with pytest.raises(AgentError, match="must be NAME, GROUP/NAME"):
            await case.gateway.app(name, {"type": "http", "headers": []}, _no, _no)

    run(main)
    assert case.session_store.opened == {}


def test_an_ended_session_frees_its_name(case: GatewayCase) -> None:
    """How the rollout ended goes along; ending what is not open is nothing; the name opens another session."""

    async def main() -> None:
        await case.ask("g1/a")
        await case.gateway.end("g1/a", Reported("failed", "ValueError: lost"))
        await case.gateway.end("g1/a", Reported("ok"))
        await case.ask("g1/a")

    run(main)
    first, second = case.session_store.opened
    assert case.session_store.ended == [(first, 1, "failed")] and first != second


def test_an_idle_session_is_ended(case: GatewayCase) -> None:
    """Its client is gone; one that is asked goes on."""

    async def main() -> None:
        await case.ask("g1/a")
        await case.ask("g1/b")
        case.now = 59
        await case.ask("g1/b")
        case.now = 61
        await case.gateway.episodes.expire()

    run(main)
    assert case.session_store.ended == [(next(iter(case.session_store.opened)), 1, "timeout")]


def test_a_shared_session_that_is_full_makes_room(case: GatewayCase) -> None:
    """The next request opens another, and the full one is ended at the next sweep."""

    async def main() -> None:
        await case.ask()
        handle = case.gateway.episodes.find("shared")
        assert handle is not None
        handle.session.spec = replace(handle.spec, most_turns=1)
        await case.ask()
        await case.gateway.episodes.expire()

    run(main)
    first, _ = case.session_store.opened
    assert case.session_store.ended == [(first, 1, "ok")] and MAX_OPEN_TURNS > 1


def test_another_server_opens_other_sessions_under_the_same_names(case: GatewayCase) -> None:
    """A client that goes on after a restart mixes nothing: ids differ."""

    async def main() -> None:
        await case.ask("g1/a")
        await case.ask("g1/a", case.make())

    run(main)
    assert len(case.session_store.opened) == 2


async def _no(*_: Any) -> Any:
    raise AssertionError("nothing is read or sent")
