"""Loops over several replicas of an engine: who plays where, and what becomes of a replica that is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from ludus.compat.verl.server import AsyncLLMServerManager
from ludus.engines.base import OnTokens
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import BackendError
from ludus.text.chat import ChatText
from ludus.types import Call, Sampled

ANSWER = list(range(3, 23))
PARAMS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


class Replica(ScriptedEngine):
    """Goes on with the written answer wherever it was broken off; fails after three tokens while it is `lost`."""

    lost = False

    def __init__(self, text: ChatText, num_prompt: int) -> None:
        super().__init__(lambda asked: ANSWER[(len(asked.prompt_ids) - num_prompt) % 100 :], text.tokenizer)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        seen: list[int] = []

        def take(chunk: Any) -> None:
            seen.extend(chunk.token_ids)
            if self.lost and len(seen) == 3:
                raise BackendError("its server is gone")
            if on_tokens is not None:
                on_tokens(chunk)

        return await super().generate(call, take)


def test_sessions_stay_and_siblings_share_a_replica(text: ChatText) -> None:
    """Turns of a trajectory, and trajectories of a group, are sampled by one replica, other groups by others."""
    prompt = text.tokenizer.encode("guess a number")

    async def scenario() -> None:
        replicas = [Replica(text, len(prompt)) for _ in range(2)]
        recorder = Recorder(RoutedEngine(replicas, stop_ids=text.tokenizer.stop_ids), text)

        async def trajectory(group: str, member: int) -> None:
            session = recorder.open(SessionSpec(f"{group}{member}", group_id=group))
            manager, ids = AsyncLLMServerManager(session), list(prompt)
            for _ in range(3):
                ids += await manager.generate("r", prompt_ids=ids, sampling_params={**PARAMS, "max_tokens": 4})

        await asyncio.gather(*(trajectory(group, member) for group in "ab" for member in range(4)))
        groups = [{call.group_id for call in replica.calls} for replica in replicas]
        assert sorted(groups, key=str) == [{"a"}, {"b"}] and [len(replica.calls) for replica in replicas] == [12, 12]

    asyncio.run(scenario())


def test_a_lost_replica_is_not_noticed_by_the_loop(text: ChatText) -> None:
    """The answer goes on at another one, with the tokens that came: in the record it is one turn."""
    prompt = text.tokenizer.encode("guess a number")

    async def scenario() -> None:
        first, second = (Replica(text, len(prompt)) for _ in range(2))
        first.lost = True
        recorder = Recorder(RoutedEngine([first, second], stop_ids=text.tokenizer.stop_ids), text)
        session = recorder.open(SessionSpec("s"))
        answer = await AsyncLLMServerManager(session).generate("r", prompt_ids=prompt, sampling_params=PARAMS)
        assert answer.token_ids == [*ANSWER, min(text.tokenizer.stop_ids)] and answer.stop_reason == "stop"
        assert len(first.calls) == len(second.calls) == 1
        (turn,) = (await session.aclose("done")).turns
        assert turn.sampled.token_ids == tuple(answer) and len(answer.log_probs) == len(answer)

    asyncio.run(scenario())
