"""Several engines that wait play more episodes than one, through gateway, rollouts and router."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ludus.checks.bench.replicas import SmallEngine, measure_replicas
from ludus.checks.bench.workloads import ReplicasWork
from ludus.text.tokenizer import Tokenizer
from ludus.types import Sampling
from tests.engines.contract import call


def test_more_calls_than_slots_wait(tokenizer_folder: Path) -> None:
    """No more calls are sampled at once than there are slots; the others follow in the order in which they came."""

    async def scenario() -> None:
        tokenizer = Tokenizer.load(tokenizer_folder)
        engine, order, most = SmallEngine("Guess. It is 7.", tokenizer, token_s=0.0, slots=2), list[str](), 0
        began: set[str] = set()

        def note(name: str) -> None:
            nonlocal most
            began.add(name)
            most = max(most, len(began - set(order)))

        async def ask(name: str) -> None:
            asked = call(name, sampling=Sampling(max_new_tokens=6))
            await engine.generate(asked, lambda chunk: note(name))
            order.append(name)

        asking = [asyncio.create_task(ask(f"{number}")) for number in range(6)]
        await asyncio.sleep(0)
        assert engine.stats().num_running == 2
        await asyncio.gather(*asking)
        assert most == 2
        assert order == ["0", "1", "2", "3", "4", "5"]

    asyncio.run(scenario())


def test_replicas_share_the_episodes(tiny_model_folder: Path) -> None:
    """Every call of every episode is answered once, by both replicas in even parts, and the clock ran."""
    work = ReplicasWork(str(tiny_model_folder), 2, slots=4, token_s=0.001, new_tokens=4, groups=4, at_once=16)
    figures = asyncio.run(measure_replicas(work))
    assert sum(figures["calls"]) == 4 * 4 * 2 + 2, "and the one episode that warms up"
    assert min(figures["calls"]) >= 8
    assert figures["episodes_per_s"] > 0
