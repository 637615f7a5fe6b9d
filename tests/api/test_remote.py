"""Several vLLM servers behind one recorder: the work is shared, and a server that goes takes no answer along."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ludus.api.remote import open_remote
from ludus.config import Config
from ludus.episodes.spec import SessionSpec
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, ChatRequest, Message, Sampling
from tests.engines.vllm.vllm_server import StandIn, serving


@pytest.fixture
def servers(tokenizer_folder: Path) -> list[StandIn]:
    tokenizer = Tokenizer.load(tokenizer_folder)
    return [StandIn(_count, tokenizer) for _ in range(2)]


def _count(asked: Call) -> list[int]:
    """Each token is its position, so that an answer goes on wherever it was broken off."""
    return [3 + position % 50 for position in range(len(asked.prompt_ids), len(asked.prompt_ids) + 40)]


def _ask(question: str) -> ChatRequest:
    return ChatRequest((Message("user", question),), sampling=Sampling(max_new_tokens=12))


def test_groups_spread_over_servers_and_outlive_one(servers: list[StandIn], tokenizer_folder: Path) -> None:
    """Siblings are sampled by one server, each group by another; when one closes, the other answers for both."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            second = stack.enter_context(serving(servers[1]))
            with serving(servers[0]) as first:
                engine = {"kind": "vllm", "urls": [first, second]}
                config = Config(model={"path": str(tokenizer_folder)}, engine=engine)
                recorder = await stack.enter_async_context(open_remote(config))
                sessions = [
                    recorder.open(SessionSpec(f"{group}{member}", group_id=group)) for group in "ab" for member in "01"
                ]
                before = await asyncio.gather(*(session.complete(_ask("one")) for session in sessions))
                assert [len(server.engine.calls) for server in servers] == [2, 2]
            after = await asyncio.gather(*(session.complete(_ask("two")) for session in sessions))
            for (turn,) in (*before, *after):
                assert len(turn.sampled.token_ids) == 12 and turn.sampled.stop_reason == "length"

    asyncio.run(scenario())
