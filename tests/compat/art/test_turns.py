"""Turns by their ids: what training took, what failed, what nobody took; every token has one account."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.rollout_sessions import ending_of
from ludus.compat.art.turns import TurnRecords
from ludus.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, Episode, Message, Outcome


class Book:
    """A model's sessions by their ids, as its backend opens and ends them; else its `TurnRecords`."""

    def __init__(self, recorder: Recorder, store: RunStore, most_kept: int) -> None:
        self.records = TurnRecords(store, Config(), most_kept=most_kept)
        self.episodes = Episodes(recorder, self.records, fit=self.records.fit)
        self.handles: dict[str, Handle] = {}

    def open(self, session_id: str, *, is_shared: bool = False) -> Session:
        handle, _ = self.episodes.open(SessionSpec(session_id, group_id=None if is_shared else "g"))
        self.handles[handle.id] = handle
        return handle.session

    async def end(self, session_id: str, error: BaseException | None = None) -> None:
        await self.episodes.end(self.handles[session_id], ending_of(error))

    async def close(self) -> None:
        for session_id in self.handles:
            await self.end(session_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.records, name)


MakeBook = Callable[..., Book]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path, "run", "") as store:
        yield store


@pytest.fixture
def make_book(store: RunStore, tokenizer_folder: Path) -> MakeBook:
    text = ChatText.load(tokenizer_folder)

    def make(*, most_kept: int = 9) -> Book:
        return Book(Recorder(ScriptedEngine(lambda call: "I say 7.", text.tokenizer), text), store, most_kept)

    return make


async def ask(session: Session, *questions: str) -> list[str]:
    return [(await session.complete(ChatRequest((Message("user", question),))))[0].id for question in questions]


def episode_of(session_store: Book, *turn_ids: str) -> dict[str, Episode]:
    """As a training step leaves them."""
    (part,) = session_store.parts(turn_ids)
    episode = Episode("step", "t", "g", part.record, {}, Outcome("ok"))
    return {turn.id: episode for turn in part.record.turns if part.turn_ids is None or turn.id in part.turn_ids}


def test_a_rollouts_session_is_taken_as_a_whole(make_book: MakeBook, store: RunStore) -> None:
    """With its turns that nobody named; turns that came after that are unused."""

    async def main() -> None:
        session_store = make_book()
        session = session_store.open("s")
        first, second = await ask(session, "a", "b")
        taken = episode_of(session_store, first)
        assert set(taken) == {first, second}
        store.add_episode(next(iter(taken.values())))
        session_store.settle(taken)
        (third,) = await ask(session, "c")
        await session_store.end("s")
        unused = session_store.take_unused(is_last=True)
        assert unused.sampled == unused.masked["unused"] == store.episode("s").session.num_sampled_tokens
        assert [turn.id for turn in store.episode("s").session.turns] == [third]
        assert [turn.id for turn in session_store.parts([second])[0].record.turns] == [first, second]

    asyncio.run(main())


def test_of_a_shared_session_only_what_is_named(make_book: MakeBook, store: RunStore) -> None:
    """The rest belongs to others, and is found after the session was put away too."""

    async def main() -> None:
        session_store = make_book()
        turns = await ask(session_store.open("s", is_shared=True), "a", "b", "c")
        taken = episode_of(session_store, turns[1])
        assert set(taken) == {turns[1]}
        store.add_episode(next(iter(taken.values())))
        session_store.settle(taken)
        await session_store.close()
        session_store.take_unused(is_last=True)
        assert [turn.id for turn in store.episode("s").session.turns] == [turns[0], turns[2]]
        assert session_store.parts([turns[2]])[0].turn_ids == {turns[2]}

    asyncio.run(main())


def test_failures_are_handed_over_once(make_book: MakeBook, store: RunStore) -> None:
    """With their tokens and their reason; a rollout that asked nothing leaves nothing."""

    async def main() -> None:
        session_store = make_book()
        await ask(session_store.open("lost"), "a")
        session_store.open("silent")
        await ask(session_store.open("stopped"), "a")
        await session_store.end("lost", KeyError("x"))
        await session_store.end("silent", KeyError("x"))
        await session_store.end("stopped", asyncio.CancelledError())
        await session_store.end("lost", KeyError("again"))
        found = [(each.episode.id, each.mask, each.episode.outcome.reason) for each in session_store.take_failed()]
        assert found == [("lost", "failed", "KeyError: 'x'"), ("stopped", "cancelled", "CancelledError: ")]
        assert session_store.take_failed() == () and session_store.take_unused(is_last=True).sampled == 0
        assert [each.id for each in store.episodes()] == ["lost", "stopped"]

    asyncio.run(main())


def test_memory_is_bounded(make_book: MakeBook, store: RunStore) -> None:
    """The oldest ended sessions go to the run store, where their turns are still found."""

    async def main() -> None:
        session_store = make_book(most_kept=2)
        turns = []
        for number in range(4):
            turns += await ask(session_store.open(f"s{number}"), "a")
            await session_store.end(f"s{number}")
        assert [each.id for each in store.episodes()] == ["s0", "s1"]
        assert [session_store.parts([turn])[0].record.id for turn in turns] == ["s0", "s1", "s2", "s3"]
        assert session_store.take_unused().sampled == sum(each.session.num_sampled_tokens for each in store.episodes())

    asyncio.run(main())


def test_turns_of_the_process_before(make_book: MakeBook) -> None:
    """They are read from the run store when they are asked for; an unknown one is named; ids are not used twice."""

    async def main() -> None:
        before = make_book()
        (turn,) = await ask(before.open("s"), "a")
        await before.close()
        before.take_unused(is_last=True)
        session_store = make_book()
        assert session_store.parts([turn])[0].record.id == "s"
        assert session_store.open("s").id == "s-r1" and session_store.open("s").id == "s-r2"
        with pytest.raises(UserError, match="'chatcmpl-x', and no record here holds it"):
            session_store.parts(["chatcmpl-x"])

    asyncio.run(main())
