"""200 replicas that die, leave, drain and join while calls run and weights are published: nothing is lost."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.engines.base import OnTokens
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import BackendError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling, TokenChunk
from tests.engines.contract import NoNewWeights

NUM_EVENTS = 200
NUM_SESSIONS = 12
ANSWER_TOKENS = 24
MOST_REPLICAS = 6


class Server(ScriptedEngine):
    """A replica whose process may be killed: what runs there fails, and all that is asked later."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(_improvise, tokenizer, context_length=256)
        self._has_died = asyncio.Event()

    def kill(self) -> None:
        self._has_died.set()

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        await self.check()
        answering = asyncio.ensure_future(super().generate(call, on_tokens))
        dying = asyncio.ensure_future(self._has_died.wait())
        try:
            await asyncio.wait({answering, dying}, return_when=asyncio.FIRST_COMPLETED)
            await self.check()
            return answering.result()
        finally:
            answering.cancel()
            dying.cancel()
            await asyncio.gather(answering, dying, return_exceptions=True)

    async def publish(self, version: int, weights: object) -> None:
        await self.check()
        await super().publish(version, NoNewWeights())

    async def check(self) -> None:
        if self._has_died.is_set():
            raise BackendError("its process was killed")


def _improvise(asked: Call) -> list[int]:
    start = len(asked.prompt_ids)
    return [_token(asked.sampling.seed or 0, position) for position in range(start, start + 40)]


def _token(seed: int, position: int) -> int:
    return 3 + hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=1).digest()[0]


class Storm:
    """What happens to the replicas: one event after the other, by chance."""

    def __init__(self, router: RoutedEngine, first: list[Server], tokenizer: Tokenizer, seed: int) -> None:
        self._router = router
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._live = dict(enumerate(first))
        self._version = 0
        self.counts = {"kill": 0, "join": 0, "drain": 0, "remove": 0, "publish": 0}

    async def happen(self) -> None:
        kinds = ["join"] if len(self._live) < 2 else ["kill", "kill", "join", "join", "drain", "remove", "publish"]
        kind = self._random.choice(kinds if len(self._live) < MOST_REPLICAS else ["kill", "drain", "publish"])
        self.counts[kind] += 1
        if kind == "join":
            server = Server(self._tokenizer)
            self._live[await self._router.add(server)] = server
        elif kind == "publish":
            self._version += 1
            await self._router.publish(self._version, NoNewWeights())
        else:
            idx = self._random.choice(sorted(self._live))
            server = self._live.pop(idx)
            if kind == "kill":
                server.kill()
                await asyncio.sleep(0)  # its calls fail before anybody takes it off the list
            await (self._router.drain(idx) if kind == "drain" else self._router.remove(idx))

    @property
    def num_comings_and_goings(self) -> int:
        return sum(self.counts.values()) - self.counts["publish"]


@dataclass(frozen=True)
class ReplayResult:
    """A call and what came of it."""

    asked: Call
    answer: Sampled
    told: list[int]
    version: int
    """Published when it began."""


async def play(router: RoutedEngine, number: int, is_over: asyncio.Event) -> list[ReplayResult]:
    """A session of calls, one after the other, each longer by the answer before."""
    played, prompt = list[ReplayResult](), (3, 4, 5, number)
    while not is_over.is_set():
        sampling = Sampling(seed=number, max_new_tokens=ANSWER_TOKENS)
        asked = Call(f"{number}/{len(played)}", f"s{number}", prompt, sampling, group_id=f"g{number % 4}")
        heard, version = list[TokenChunk](), router.stats().version
        answer = await router.generate(asked, heard.append)
        played.append(ReplayResult(asked, answer, [token for chunk in heard for token in chunk.token_ids], version))
        prompt = (*prompt, *answer.token_ids) if len(prompt) < 120 else (3, 4, 5, number)
    return played


@pytest.mark.parametrize("seed", range(2))
def test_200_kills_and_joins_lose_nothing(seed: int, tokenizer_folder: Path) -> None:
    """Every call gets the answer it would get alone, delivered once and in order, by no older weights than those that
    were published when it began; in the end nothing is outstanding, and every call is counted."""
    tokenizer = Tokenizer.load(tokenizer_folder)

    async def scenario() -> None:
        first = [Server(tokenizer) for _ in range(3)]
        router = RoutedEngine(first, stop_ids=tokenizer.stop_ids, patience_s=60.0)
        storm, is_over = Storm(router, first, tokenizer, seed), asyncio.Event()
        sessions = [asyncio.create_task(play(router, number, is_over)) for number in range(NUM_SESSIONS)]
        while storm.num_comings_and_goings < NUM_EVENTS:
            await storm.happen()
            for _ in range(storm.num_comings_and_goings % 16):  # time for some tokens
                await asyncio.sleep(0)
        is_over.set()
        played = [one for session in await asyncio.gather(*sessions) for one in session]
        for one in played:
            whole = _improvise(one.asked)[:ANSWER_TOKENS]
            assert list(one.answer.token_ids) == one.told == whole and one.answer.stop_reason == "length"
            assert min(one.answer.versions) >= one.version
        assert min(storm.counts.values()) > 5 and router.num_moved > 20
        assert all(load.num_calls == load.num_tokens == 0 for load in router.loads().values())
        assert router.stats().num_calls == len(played) and router.stats().num_running == 0
        await router.close()

    asyncio.run(scenario())
