"""Sessions that arrive: groups, what is left out, the record on disk, waiting without work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.ledger import MaskReason
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.rollout.groups import GroupFilter, TakenGroups
from ludus.rollout.online import OnlineRollouts
from ludus.rollout.settings import GenerationSettings, OnlineSettings, RolloutSettings
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText
from ludus.types import Group

KEY = "the-admin-key-of-the-tests"


class Outside:
    """An application elsewhere: it opens sessions, talks, rewards and ends them."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=30)

    async def play(self, reward: float | None, **asked: Any) -> dict[str, Any]:
        opened = (await self.http.post("/sessions", json=asked, headers={"x-api-key": KEY})).json()
        headers = {"x-api-key": opened["key"]}
        body = {"messages": [{"role": "user", "content": "Guess."}]}
        (await self.http.post("/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        if reward is not None:
            await self.http.post("/sessions/current/rewards", json={"reward": reward}, headers=headers)
        (await self.http.post("/sessions/current/end", json={}, headers=headers)).raise_for_status()
        return dict(opened)


Main = Callable[[OnlineRollouts, Outside, RunStore], Awaitable[None]]


@pytest.fixture
def arrive(tokenizer_folder: Path, tmp_path: Path) -> Callable[..., TakenGroups]:
    """Runs a coroutine with online rollouts of groups of two, and somebody outside; what was left at the end."""

    def run(main: Main, *, version: int = 0, group_filter: GroupFilter | None = None, **settings: Any) -> TakenGroups:
        text = ChatText.load(tokenizer_folder)
        rollout = RolloutSettings(agent=OnlineSettings(port=0), **settings)
        told: list[tuple[str, str]] = []

        async def play() -> TakenGroups:
            engine = ScriptedEngine(lambda call: "7", text.tokenizer)
            with RunStore.create(tmp_path, "run", "") as store:
                rollouts = OnlineRollouts(
                    Recorder(engine, text),
                    store,
                    rollout,
                    GenerationSettings(n_samples=2),
                    version=version,
                    group_filter=group_filter,
                    admin_key=KEY,
                    on_gateway=lambda url, key: told.append((url, key)),
                )
                async with rollouts:
                    ((url, key),) = told
                    assert key == KEY
                    outside = Outside(url)
                    async with outside.http:
                        await main(rollouts, outside, store)
                return rollouts.drain_nowait()

        return asyncio.run(play())

    return run


def members(taken: TakenGroups) -> list[list[float | None]]:
    return [[episode.reward for episode in group.episodes] for group in taken.groups]


def test_groups_are_those_that_were_named(arrive: Any) -> None:
    """A group is complete when as many sessions have ended as it has, whatever ends between; it is on disk then."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        waiting = asyncio.ensure_future(rollouts.take(2))
        await outside.play(1.0, group_id="a")
        await outside.play(2.0, group_id="b", group_size=3)
        await outside.play(3.0, group_id="b", group_size=3)
        assert not waiting.done()
        await outside.play(4.0, group_id="a")
        await outside.play(None, group_id="b", group_size=3)
        taken = await waiting
        assert [group.id for group in taken.groups] == ["a", "b"]
        assert members(taken) == [[1.0, 4.0], [2.0, 3.0]]
        assert [item.mask for item in taken.discarded] == ["no_credit"]
        assert store.num_episodes == 5

    arrive(main)


def test_sessions_without_a_group_are_put_together(arrive: Any) -> None:
    """Those that end next to each other are compared with each other; one without a reward does not count."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        for reward in (1.0, None, 2.0, 3.0, 4.0):
            await outside.play(reward)
        assert members(await rollouts.take(2)) == [[1.0, 2.0], [3.0, 4.0]]

    arrive(main)


def test_small_groups_and_what_was_never_taken_are_accounted_for(arrive: Any) -> None:
    """A group with too few rewards is discarded by name; what waits at the end is unused."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        await outside.play(1.0, group_id="a")
        await outside.play(None, group_id="a")
        await outside.play(1.0, group_id="open")
        await outside.play(1.0)
        drained = rollouts.drain_nowait()
        assert sorted(item.mask for item in drained.discarded) == ["no_credit", "small_group", "unused", "unused"]

    arrive(main)


def test_a_group_of_which_every_token_is_too_old_is_left_out(arrive: Any) -> None:
    """Once newer weights are published than staleness admits, a group that waited is discarded as stale."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        for reward in (1.0, 2.0):
            await outside.play(reward, group_id="old")
        await asyncio.sleep(0)
        rollouts.advance(2)
        waiting = asyncio.ensure_future(rollouts.take(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert [item.mask for item in rollouts.drain_nowait().discarded] == ["stale", "stale"]
        waiting.cancel()

    arrive(main, max_head_offpolicyness=1)


def test_groups_of_one_cannot_be_compared(arrive: Any) -> None:
    """A group that its opener made smaller than the smallest that is trained on is masked by name."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        await outside.play(1.0, group_id="a", group_size=1)

    assert [item.mask for item in arrive(main).discarded] == ["small_group"]


def test_a_judge_that_raises_stops_the_run_and_costs_no_token(arrive: Any) -> None:
    """Its error reaches whoever takes the next batch; the group's sessions are accounted for."""

    def group_filter(group: Group) -> MaskReason | None:
        raise ZeroDivisionError(group.id)

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        waiting = asyncio.ensure_future(rollouts.take(1))
        for reward in (1.0, 2.0):
            await outside.play(reward, group_id="a")
        with pytest.raises(ZeroDivisionError):
            await waiting

    assert [item.mask for item in arrive(main, group_filter=group_filter).discarded] == ["unused", "unused"]


def test_rewards_come_before_the_end(arrive: Any) -> None:
    """What may have been trained on cannot be rewarded any more; the refusal says so."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        opened = await outside.play(1.0)
        late = await outside.http.post(
            "/sessions/current/rewards", json={"reward": 2.0}, headers={"x-api-key": opened["key"]}
        )
        assert (late.status_code, late.json()["error"]["code"]) == (409, "session_ended")
        assert store.episode(opened["id"]).reward == 1.0

    arrive(main)


def test_leaving_ends_what_is_open(arrive: Any, tmp_path: Path) -> None:
    """Sessions that others still play when the run ends are in the run, cancelled."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        opened = (await outside.http.post("/sessions", json={"id": "open"}, headers={"x-api-key": KEY})).json()
        body = {"messages": [{"role": "user", "content": "Guess."}]}
        await outside.http.post("/v1/chat/completions", json=body, headers={"x-api-key": opened["key"]})

    arrive(main)
    with RunStore.open(tmp_path / "run") as run:
        assert run.episode("open").outcome.kind == "cancelled"


def test_a_session_that_ends_with_the_run_is_accounted_for(arrive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the gateway's thread ends while it is being stopped is among what is drained."""

    async def main(rollouts: OnlineRollouts, outside: Outside, store: RunStore) -> None:
        await outside.play(1.0)
        (last,) = rollouts.drain_nowait().discarded
        stop = rollouts._server.stop

        def end_one_and_stop() -> None:
            gateway = threading.Thread(target=rollouts.arrived, args=(last.episode, SessionSpec()))
            gateway.start()
            gateway.join()
            stop()

        monkeypatch.setattr(rollouts._server, "stop", end_one_and_stop)

    assert [item.mask for item in arrive(main).discarded] == ["unused"]
