"""Sessions of a model by the names that clients elsewhere give them: one each, shared, idle, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.cluster.serve.gateways import ModelGateway
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episodes import MAX_OPEN_TURNS
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.text.chat import ChatText


@dataclass
class Book:
    """Keeps the sessions that were opened."""

    recorder: Recorder
    opened: dict[str, Session] = field(default_factory=dict)
    about: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    """is_shared and group_id, by session id."""
    ended: list[tuple[str, BaseException | None]] = field(default_factory=list)

    def open(self, session_id: str, *, is_shared: bool = False, group_id: str | None = None) -> Session:
        while session_id in self.opened:
            session_id += "-again"
        self.about[session_id] = (is_shared, group_id)
        self.opened[session_id] = self.recorder.open(session_id=session_id, group_id=group_id)
        return self.opened[session_id]

    async def end(self, session_id: str, error: BaseException | None = None) -> None:
        self.ended.append((session_id, error))
        await self.opened[session_id].aclose("it was ended")


class Room:
    """One model's gateway with a clock that a test sets."""

    def __init__(self, text: ChatText) -> None:
        self.now = 0.0
        self.book = Book(Recorder(ScriptedEngine(lambda _: "7.", text.tokenizer), text))
        self.gateway = self.make()

    def make(self) -> ModelGateway:
        return ModelGateway(self.book, "agent-001", clock=lambda: self.now, idle_s=60)

    async def ask(self, name: str | None = None, gateway: ModelGateway | None = None) -> httpx.Response:
        transport = httpx.ASGITransport((gateway or self.gateway).app)
        headers = {"authorization": "Bearer the-servers-key"}
        if name is not None:
            headers["x-ludus-session"] = name
        async with httpx.AsyncClient(transport=transport, base_url="http://there") as http:
            body = {"model": "agent-001", "messages": [{"role": "user", "content": "Guess."}]}
            return await http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.fixture
def room(tokenizer_folder: Path) -> Room:
    return Room(ChatText.load(tokenizer_folder))


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


def test_a_name_is_a_session(room: Room) -> None:
    """Requests of one name are one session; GROUP/NAME is a rollout's own and of its group, all else is shared."""

    async def main() -> None:
        for name in ("c:g1/a", "c:g1/a", "c:g1/b", "d:g1/a", "c:mine", None, None):
            answer = await room.ask(name)
            assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "7."
            assert "x-ludus-ignored" not in answer.headers

    run(main)
    num_turns = {session_id: len(each.snapshot().turns) for session_id, each in room.book.opened.items()}
    assert num_turns == {"g1-a": 2, "g1-b": 1, "g1-a-again": 1, "mine": 1, "shared": 2}
    rollout, shared = (False, "g1"), (True, None)
    assert list(room.book.about.values()) == [rollout, rollout, rollout, shared, shared]


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "/a", "a/", "a" * 129, "å", "a:", ":a", "a:b:c"])
def test_a_name_that_cannot_be_is_refused(room: Room, name: str) -> None:
    """Before anything is opened."""

    async def main() -> None:
        with pytest.raises(AgentError, match="must be NAME, GROUP/NAME"):
            await room.gateway.app({"type": "http", "headers": [(b"x-ludus-session", name.encode())]}, _no, _no)

    run(main)
    assert room.book.opened == {}


def test_an_ended_session_frees_its_name(room: Room) -> None:
    """The rollout's error goes along; ending what is not open is nothing; the name opens another session."""
    error = ValueError("lost")

    async def main() -> None:
        await room.ask("g1/a")
        await room.gateway.end("g1/a", error)
        await room.gateway.end("g1/a")
        await room.ask("g1/a")

    run(main)
    first, second = room.book.opened
    assert room.book.ended == [(first, error)] and first != second


def test_an_idle_session_is_ended(room: Room) -> None:
    """Its client is gone; one that is asked goes on."""

    async def main() -> None:
        await room.ask("g1/a")
        await room.ask("g1/b")
        room.now = 59
        await room.ask("g1/b")
        room.now = 61
        await room.gateway.expire()

    run(main)
    assert room.book.ended == [(next(iter(room.book.opened)), None)]


def test_a_shared_session_that_is_full_makes_room(room: Room) -> None:
    """The next request opens another, and the full one is ended at the next sweep."""

    async def main() -> None:
        await room.ask()
        seat = room.gateway._open["shared"].seat
        seat.spec = replace(seat.spec, most_turns=1)
        await room.ask()
        await room.gateway.expire()

    run(main)
    first, _ = room.book.opened
    assert room.book.ended == [(first, None)] and MAX_OPEN_TURNS > 1


def test_another_server_opens_other_sessions_under_the_same_names(room: Room) -> None:
    """A client that goes on after a restart mixes nothing: ids differ."""

    async def main() -> None:
        await room.ask("g1/a")
        await room.ask("g1/a", room.make())

    run(main)
    assert len(room.book.opened) == 2


async def _no(*_: Any) -> Any:
    raise AssertionError("nothing is read or sent")
