"""One conversation, three ways in: a number means the same in this process, over HTTP, and as a trajectory's reward."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.agents.kinds import resolve_workflow
from ludus.checks.verify.chat import chat_of_words
from ludus.checks.verify.trees import WORDS
from ludus.compat.art.choice import Choice
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.settle import settle_groups
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.art.turns import TurnRecords
from ludus.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import MemoryArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.reward import not_chosen
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions, build_app
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText
from ludus.types import Call, Episode

NUM_TREES = 40
REWARD = 0.625
Json = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> ChatText:
    return chat_of_words(WORDS)


class ScriptedModel:
    """Answers a prompt with what it and the number of its earlier answers decide."""

    def __init__(self) -> None:
        self._asked: Counter[tuple[int, ...]] = Counter()

    def __call__(self, call: Call) -> str:
        self._asked[call.prompt_ids] += 1
        rng = random.Random(f"{hash(call.prompt_ids)}/{self._asked[call.prompt_ids]}")
        thought = f"<think>\n{rng.choice(WORDS)}\n</think>\n\n" if rng.random() < 0.3 else ""
        return thought + " ".join(rng.choices(WORDS, k=rng.randrange(1, 3)))


async def wander(http: Any, base_url: str, key: str, rng: random.Random) -> None:
    """Asks in every way: goes on from any answer, asks again, for several choices, as another agent, afresh."""
    answers: list[tuple[Sequence[Json], Json, str]] = []
    for _ in range(rng.randint(1, 8)):
        kind = rng.choice(("go_on",) * 5 + ("again", "fresh", "edit", "drop")) if answers else "fresh"
        messages: list[Json] = [{"role": "user", "content": rng.choice(WORDS)}]
        agent = rng.choice(("", "", "critic"))
        if kind != "fresh":
            asked, reply, agent = rng.choice((answers[-1], rng.choice(answers)))
            told = {name: value for name, value in reply.items() if name in ("role", "content")}
            if "reasoning_content" in reply and rng.random() < 0.5:
                told["reasoning_content"] = reply["reasoning_content"]
            messages = list(asked) if kind == "again" else [*asked, told, *messages]
            if kind == "edit":
                messages[0] = {**messages[0], "content": "go up on"}
            elif kind == "drop" and len(messages) > 2:
                del messages[0]
        body = {"model": "default", "messages": messages, "n": rng.choice((1, 1, 1, 2, 3))}
        headers = {"authorization": f"Bearer {key}", "x-ludus-agent": agent}
        answered = await http.post(f"{base_url}/chat/completions", json=body, headers=headers)
        assert answered.status_code == 200, answered.text
        answers += [(messages, choice["message"], agent) for choice in answered.json()["choices"]]


class Wanderer:
    async def run(self, data: Json, *, base_url: str, api_key: str, http_client: Any) -> float:
        await wander(http_client, base_url, api_key, random.Random(data["seed"]))
        return REWARD


async def in_process(recorder: Recorder, seed: int) -> Episode:
    generation = GenerationSettings()
    with AgentRuntime(recorder, GatewayServer(SessionKeys())) as runtime:
        runner = EpisodeRunner(
            Players({"": resolve_workflow(Wanderer)}),
            runtime,
            RolloutSettings(),
            training=generation,
            evaluation=generation,
        )
        async with runner:
            return await runner.run(EpisodeTask("e", "e", "e", {"seed": seed}, seed=seed, step=1))


async def over_http(recorder: Recorder, seed: int) -> Episode:
    episodes = Episodes(recorder, MemoryArchive())
    app = build_app(episodes.keys, GatewayOptions(episodes=episodes, admin_key="the-admin-key-of-the-test"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://there") as http:
        admin = {"x-api-key": "the-admin-key-of-the-test"}
        opened = (await http.post("/sessions", json={"id": "e"}, headers=admin)).json()
        await wander(http, opened["base_url"], opened["key"], random.Random(seed))
        for path, body in (("rewards", {"reward": REWARD}), ("end", {})):
            answered = await http.post(f"/sessions/e/{path}", json=body, headers=admin)
            assert answered.status_code == 200, answered.text
    return episodes.episode("e")


async def as_trajectory(recorder: Recorder, seed: int, folder: Path) -> Episode:
    with RunStore.create(folder, f"run{seed}", "") as store:
        records = TurnRecords(store, Config())
        episodes = Episodes(recorder, records, fit=records.fit)
        handle, key = episodes.open(SessionSpec("e", group_id="g"))
        app = build_app(episodes.keys)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
            await wander(http, "http://there/v1", key, random.Random(seed))
        await episodes.end(handle, Reported("ok"))
        turns = handle.session.snapshot().turns
        others = not_chosen(turns)
        choices = [
            Choice.model_validate({"message": {"content": "x"}, "finish_reason": "stop", "turn_id": turn.id})
            for turn in turns
            if turn.id not in others
        ]
        trajectory = Trajectory(messages_and_choices=list(choices), reward=REWARD)
        settled = settle_groups([TrajectoryGroup([trajectory])], records, step=1)
        return settled.taken.groups[0].episodes[0]


def learned(episode: Episode) -> tuple[Any, ...]:
    """What the episode is worth, its turns by their place."""
    turns = episode.session.turns
    shape = [(turn.messages, turn.reply.content, turn.agent) for turn in turns]
    rewards = [episode.rewards.get(turn.id) for turn in turns]
    return shape, rewards, episode.reward, episode.outcome


def test_a_number_means_the_same_by_every_way(text: ChatText, tmp_path: Path) -> None:
    """Random conversations that branch, repeat and start anew: equal rewards by turn, equal reward, equal outcome."""
    met: Counter[str] = Counter()

    async def play(way: Callable[..., Any], seed: int, *more: Any) -> Episode:
        episode = await way(Recorder(ScriptedEngine(ScriptedModel(), text.tokenizer), text), seed, *more)
        assert isinstance(episode, Episode)
        return episode

    async def main() -> None:
        for seed in range(NUM_TREES):
            here, there = await play(in_process, seed), await play(over_http, seed)
            claimed = await play(as_trajectory, seed, tmp_path)
            assert learned(here) == learned(there) == learned(claimed), seed
            assert here.outcome.kind == "ok" and here.reward == REWARD and here.rewards
            met["several leaves"] += len(here.rewards) > 1
            met["not chosen"] += bool(not_chosen(here.session.turns))
            met["several turns"] += len(here.session.turns) > 3

    asyncio.run(main())
    assert min(met[name] for name in ("several leaves", "not chosen", "several turns")) > NUM_TREES // 4, met
