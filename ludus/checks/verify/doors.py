"""Checks that the same dialogue gives the trainer the same tokens, masks, logprobs and advantages in every family of
agents.

Knows: the agent adapters of all families, the recorder, a scripted model.  Knows not: the agents of each family.
The engine's answers depend only on the prompt's tokens. If a family loses, adds or changes anything, all later tokens
and the rewards differ.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ludus.agents.kinds import resolve_workflow
from ludus.algorithms.pack import Batch
from ludus.algorithms.settings import AlgorithmSettings
from ludus.checks.playing import playing
from ludus.checks.sdk import sdk
from ludus.checks.verify.answers import WORDS, digest, rng_of, sampled_ids, some_words
from ludus.checks.verify.chat import chat_of_words
from ludus.checks.verify.families import (
    MAX_TOKENS,
    LoopAgent,
    QueueAgent,
    QueueEnv,
    RolloutAgent,
    WorkflowAgent,
    trajectory_rollout,
)
from ludus.checks.verify.verdict import OnDone, Verdict, ignore
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.settle import settle_groups
from ludus.compat.art.turns import TurnRecords
from ludus.compat.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import MemoryArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.keys import SessionKeys
from ludus.episodes.ledger import Ledger
from ludus.episodes.outcome import Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.http.keys import new_key
from ludus.loop.batch import BatchRules, build_batch
from ludus.rollout.groups import TakenGroups
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Episode, Group

N_MEMBERS = 4
NUM_FOLLOW_UPS = 3
_RULES = BatchRules(
    algorithm=AlgorithmSettings(), turn_discount=1.0, export_style="concat", row_tokens=4096, max_token_age=0
)
_GROUP_ID = "step000001-g0000"


@dataclass(frozen=True, slots=True)
class FamilySetup:
    """What a family needs: the chat text, and its own engine."""

    text: ChatText
    recorder: Recorder
    rows: Sequence[Mapping[str, Any]]


Play = Callable[[FamilySetup], Coroutine[Any, Any, Sequence[Episode]]]


@dataclass(frozen=True, slots=True)
class TrainerInput:
    """Digest and size of the trainer's input."""

    hash: str
    ledger: Ledger
    num_turns: int


@dataclass(frozen=True, slots=True)
class DoorsResult(Verdict):
    seed: int
    learned: Mapping[str, TrainerInput] = field(default_factory=dict)
    """By family."""

    @property
    def ok(self) -> bool:
        return len({item.hash for item in self.learned.values()}) == 1 and all(
            item.ledger.trained == item.ledger.sampled > 0 for item in self.learned.values()
        )

    def to_json(self) -> dict[str, object]:
        first = next(iter(self.learned.values()))
        return {
            "check": "doors",
            "seed": self.seed,
            "hashes": {name: item.hash for name, item in self.learned.items()},
            "episodes": N_MEMBERS,
            "turns": first.num_turns,
            "tokens": first.ledger.sampled,
            "trained": {name: item.ledger.trained for name, item in self.learned.items()},
            "ok": self.ok,
        }


async def play_trajectories(setup: FamilySetup) -> Sequence[Episode]:
    """Play as a backend does: a session for each rollout, whose choices are then found in the records."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(Path(folder), "doors", "")
        with store, GatewayServer(keys := SessionKeys()) as server:
            records = TurnRecords(store, Config())
            episodes = Episodes(setup.recorder, records, keys=keys, fit=records.fit)

            async def rollout(member_idx: int, row: Mapping[str, Any]) -> Any:
                handle, secret = episodes.open(SessionSpec(f"member{member_idx}", group_id=_GROUP_ID))
                async with sdk("openai").AsyncOpenAI(base_url=server.url_for(secret), api_key=secret) as client:
                    trajectory = await trajectory_rollout(client, row)
                await episodes.end(handle, Reported("ok"))
                return trajectory

            group = await TrajectoryGroup(rollout(idx, row) for idx, row in enumerate(setup.rows))
            settled = settle_groups([group], records, step=1)
            records.settle(settled.turns)
            (found,) = settled.taken.groups
            return found.episodes


async def play_http(setup: FamilySetup) -> Sequence[Episode]:
    """Play as a remote agent does: sessions are opened, rewarded and ended over HTTP."""
    archive, admin_key = MemoryArchive(), new_key()
    episodes = Episodes(setup.recorder, archive)
    options = GatewayOptions(episodes=episodes, admin_key=admin_key)
    with GatewayServer(episodes.keys, options) as server:
        async with sdk("openai").DefaultAsyncHttpxClient(headers={"x-api-key": admin_key}) as http:

            async def post(path: str, body: Mapping[str, Any]) -> Any:
                return (await http.post(f"{server.base_url}/sessions{path}", json=body)).raise_for_status().json()

            async def play(member_idx: int, row: Mapping[str, Any]) -> Episode:
                session_id = f"{_GROUP_ID}-m{member_idx:03d}"
                opened = await post("", {"id": session_id, "group_id": _GROUP_ID})
                reached = {"base_url": opened["base_url"], "api_key": opened["key"]}
                async with sdk("openai").DefaultAsyncHttpxClient() as own:
                    reward = await WorkflowAgent().run(row, **reached, http_client=own)
                await post(f"/{session_id}/rewards", {"reward": reward})
                await post(f"/{session_id}/end", {})
                return episodes.episode(session_id)

            return await asyncio.gather(*(play(idx, row) for idx, row in enumerate(setup.rows)))


async def play_family(
    setup: FamilySetup, workflow: object, *, has_text: bool = False, **kwargs: object
) -> Sequence[Episode]:
    """Play as a run does: in an agent runtime, an episode for each row. has_text: the agent is made with the chat
    text."""
    kwargs |= {"text": setup.text} if has_text else {}
    generation = GenerationSettings(n_samples=N_MEMBERS, max_new_tokens=MAX_TOKENS)
    agent = resolve_workflow(workflow, kwargs, kinds=Config.agent_kinds)
    async with playing(agent, setup.recorder, generation, RolloutSettings()) as runner:
        tasks = [
            EpisodeTask(f"{_GROUP_ID}-m{idx:03d}", _GROUP_ID, "dialogue", row, seed=idx, step=1)
            for idx, row in enumerate(setup.rows)
        ]
        return await asyncio.gather(*(runner.run(task) for task in tasks))


FAMILIES: Mapping[str, Play] = {
    "workflow": partial(play_family, workflow=WorkflowAgent),
    "rollout workflow": partial(play_family, workflow=RolloutAgent, has_text=True),
    "loop": partial(play_family, workflow=LoopAgent),
    "trajectory": play_trajectories,
    "queues": partial(play_family, workflow=QueueAgent, has_text=True, env=QueueEnv),
    "http": play_http,
}


def verify_doors(*, seed: int = 0, families: Mapping[str, Play] = FAMILIES, on_done: OnDone = ignore) -> DoorsResult:
    """Does a dialogue train the same, whichever family of agents has it?

    The same four dialogues are run by a workflow, an agent loop, a
    trajectory and a queue agent. Tokens, masks, logprobs and advantages
    that would reach the trainer must be equal to the last bit.

    Example:  ludus verify doors --seed 3 --json
    """
    text = chat_of_words(WORDS)
    learned: dict[str, TrainerInput] = {}
    for name, play in families.items():
        engine = ScriptedEngine(partial(_answer, text.tokenizer, seed), text.tokenizer)
        setup = FamilySetup(text, Recorder(engine, text), _rows(seed))
        learned[name] = _learn(asyncio.run(play(setup)))
        on_done(len(learned), len(families))
    return DoorsResult(seed, learned)


def _learn(episodes: Sequence[Episode]) -> TrainerInput:
    failed = [episode for episode in episodes if not episode.outcome.has_credit]
    assert not failed, failed[0].outcome.reason
    group = Group(_GROUP_ID, "dialogue", tuple(episodes))
    built = build_batch(TakenGroups((group,), ()), _RULES, version=0)
    built.ledger.check()
    num_turns = sum(len(episode.session.turns) for episode in episodes)
    return TrainerInput(digest(_columns(built.batch)), built.ledger, num_turns)


def _columns(batch: Batch) -> Iterator[array[int] | array[float]]:
    for row in batch.rows:
        for ints in (row.token_ids, row.positions, row.parents, row.source_idx, row.target_ids, row.versions):
            yield array("q", ints)
        for floats in (row.advantages, row.weights, row.logprobs, row.temperatures):
            yield array("d", floats)


def _rows(seed: int) -> list[dict[str, Any]]:
    """The dialogues of the members, which must differ, as the engine's answers depend only on the prompt."""
    rng = random.Random(seed)
    instructions = f"Answer with {some_words(rng)}."
    return [
        {
            "messages": [
                {"role": "system", "content": instructions},
                {"role": "user", "content": f"{idx}: {some_words(rng)}?"},
            ],
            "follow_ups": [f"And {some_words(rng)}?" for _ in range(NUM_FOLLOW_UPS)],
        }
        for idx in range(N_MEMBERS)
    ]


def _answer(tokenizer: Tokenizer, seed: int, call: Call) -> list[int]:
    rng = rng_of(call.prompt_ids, seed)
    return sampled_ids(rng, tokenizer, some_words(rng))
