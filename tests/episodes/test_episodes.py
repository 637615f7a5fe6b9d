"""The life of sessions: opened, used, rewarded, ended, from several threads and loops, and what is kept of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import Archive, MemoryArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Idle, Reported, Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, BackendError
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, Episode, Turn
from tests.episodes.conftest import user

Make = Callable[..., Episodes]


@pytest.fixture
def make(tokenizer_folder: Path) -> Make:
    text = ChatText.load(tokenizer_folder)
    recorder = Recorder(ScriptedEngine(lambda call: "I say 7.", text.tokenizer), text)

    def make(archive: Archive | None = None, **options: Any) -> Episodes:
        return Episodes(recorder, archive, **options)

    return make


async def ask(handle: Handle, content: str = "Guess.") -> Turn:
    (turn,) = await handle.session.complete(ChatRequest((user(content),)))
    return turn


def test_the_journey_of_a_session(make: Make) -> None:
    """Opened, used, rewarded, ended: an episode that is kept, and found by its key for as long as keys are known."""

    async def main() -> None:
        episodes = make(MemoryArchive())
        handle, key = episodes.open(SessionSpec("one", group_id="g", metadata={"a": 1}))
        assert episodes.find("one") is handle and episodes.by_key(key) == "one"
        turn = await ask(handle)
        assert episodes.reward("one", 1.0) == {turn.id: 1.0}
        assert episodes.episode_so_far(handle).reward == 1.0
        episode = await episodes.end(handle, Reported("ok"), metrics={"success": 1.0})
        assert (episode.task_id, episode.group_id, episode.metadata) == ("g", "g", {"a": 1})
        assert episode.rewards == {turn.id: 1.0} and episode.metrics == {"success": 1.0}
        assert await episodes.end(handle, Reported("failed")) is episode
        assert episodes.find("one") is None and episodes.by_key(key) == "one" and not episodes.open_sessions
        with pytest.raises(AgentError, match="is closed"):
            await ask(handle)
        assert episodes.reward("one", {turn.id: 2.0}) == {turn.id: 2.0}
        assert episodes.episode("one").reward == 2.0

    asyncio.run(main())


def test_what_an_agent_returned_is_its_reward(make: Make) -> None:
    """Without an archive the episode is only returned."""

    async def main() -> None:
        episodes = make()
        handle, _ = episodes.open(SessionSpec(is_eval=True))
        turn = await ask(handle)
        episode = await episodes.end(handle, Returned(0.5))
        assert (episode.rewards, episode.reward, episode.is_eval) == ({turn.id: 0.5}, 0.5, True)
        with pytest.raises(AgentError, match="there is no session"):
            episodes.reward(episode.id, 1.0)

    asyncio.run(main())


def test_ids_are_given_once_at_a_time(make: Make) -> None:
    """An open id is taken; one that ended may be played again, but not opened anew by a client."""

    async def main() -> None:
        episodes = make(MemoryArchive())
        handle, _ = episodes.open(SessionSpec("one"))
        for taken in (episodes.open, episodes.open_new):
            with pytest.raises(AgentError) as caught:
                opened: Any = taken(SessionSpec("one"))
                await opened
            assert (caught.value.status, caught.value.code) == (409, "session_exists")
        await episodes.end(handle, Reported("ok"))
        with pytest.raises(AgentError, match="already"):
            await episodes.open_new(SessionSpec("one"))
        again, _ = episodes.open(SessionSpec("one"))
        assert again is not handle and episodes.find("one") is again

    asyncio.run(main())


class Full(MemoryArchive):
    """Refuses as long as it is full."""

    is_full = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        if self.is_full:
            raise BackendError("the disk is full")
        self.kept.append(episode.id)
        super().keep(episode, spec)


def test_a_session_that_cannot_be_kept_is_there_still(make: Make) -> None:
    """Its rewards and its key too; the next end keeps it, once, however many end it together."""

    async def main() -> None:
        archive = Full()
        episodes = make(archive)
        handle, key = episodes.open(SessionSpec("one"))
        turn = await ask(handle)
        episodes.reward("one", 1.0)
        with pytest.raises(BackendError):
            await episodes.end(handle, Reported("ok"))
        assert episodes.find("one") is handle and episodes.keys.get(key) is handle
        archive.is_full = False
        first, second = await asyncio.gather(*(episodes.end(handle, Reported("ok")) for _ in range(2)))
        assert first is second and first.rewards == {turn.id: 1.0} and archive.kept == ["one"]

    asyncio.run(main())


def test_sessions_by_key(make: Make) -> None:
    """An unknown key opens a session and gets another one in place of a full or an ended one; nothing is left of a
    session that nobody used."""

    async def main() -> None:
        archive = Full()
        archive.is_full = False
        episodes = make(archive)
        first = episodes.open_for_key("ann", SessionSpec(most_turns=1))
        assert not first.is_full and await ask(first) and first.is_full
        second = episodes.open_for_key("ann")
        assert episodes.by_key("ann") == second.id and episodes.find(first.id) is None
        await episodes.expire()
        assert archive.kept == [first.id]
        unused = episodes.open_for_key("")
        await episodes.end(unused, Reported("ok"))
        assert archive.kept == [first.id] and episodes.open_for_key("") is not unused

    asyncio.run(main())


def test_beyond_the_bound_the_longest_unused_one_ends(make: Make) -> None:
    """Sessions that were opened by name do not count."""
    now = [0.0]
    episodes = make(keys=SessionKeys(clock=lambda: now[0]), most_by_key=2)
    named, _ = episodes.open()
    for name in "abc":
        now[0] += 1
        episodes.open_for_key(name)
    assert episodes.by_key("a") is None and episodes.by_key("b") is not None
    assert len(episodes.open_sessions) == 3 and named in episodes.open_sessions


def test_idle_sessions_end(make: Make) -> None:
    """One in use stays, and so does every one where nobody set a bound."""

    async def main() -> None:
        now = [0.0]
        keys = SessionKeys(clock=lambda: now[0])
        episodes, patient = make(MemoryArchive(), keys=keys, idle_s=60), make(keys=keys)
        idle, _ = episodes.open()
        used, key = episodes.open()
        stays, _ = patient.open()
        for handle in (idle, used, stays):
            await ask(handle)
        now[0] = 50.0
        keys.find(key, {})
        now[0] = 70.0
        await episodes.expire()
        await patient.expire()
        assert idle.episode is not None and idle.episode.outcome.reason == "no request for 60 s"
        assert episodes.open_sessions == (used,) and patient.open_sessions == (stays,)
        assert (await episodes.end(idle, Idle(1.0))).outcome.kind == "timeout"
        assert episodes.reward(idle.id, 1.0) and episodes.episode(idle.id).outcome.kind == "truncated"
        await episodes.aclose("over")
        assert used.episode is not None and used.episode.outcome.kind == "cancelled"

    asyncio.run(main())


def test_threads_and_loops_share_the_sessions(make: Make) -> None:
    """Each thread opens, uses, rewards and ends sessions on a loop of its own; one ends what another opened."""
    episodes, opened = make(MemoryArchive()), []

    async def play(name: str) -> None:
        for number in range(5):
            handle, _ = episodes.open(SessionSpec(f"{name}{number}"))
            await ask(handle)
            episodes.reward(handle.id, float(number))
            opened.append(handle)
        for handle in tuple(opened):
            await episodes.end(handle, Reported("ok"))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(play(name))) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 15 and not episodes.open_sessions
    for handle in opened:
        assert episodes.episode(handle.id).reward == float(handle.id[1:])


def test_specs_are_fitted(make: Make) -> None:
    """Whoever keeps the sessions may bound what they are opened with."""
    episodes = make(fit=lambda spec: replace(spec, id=f"{spec.id}-r1", agent="critic"))
    handle, _ = episodes.open(SessionSpec("one"))
    assert (handle.id, handle.spec.agent) == ("one-r1", "critic") and episodes.find("one-r1") is handle
