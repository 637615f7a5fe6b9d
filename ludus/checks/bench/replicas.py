"""Measures the speed-up by replicas when engines are the bottleneck: the same episodes on one engine and on several.

Knows: the gateway, the rollouts, the router, engines with scripted answers.  Knows not: models, pairs, terminals.

An engine here samples a fixed number of calls at once, each token after a fixed time: it is limited by latency, like a
remote engine, and not by the processor that all of them share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.agents.kinds import resolve_workflow
from ludus.checks.bench.workloads import ReplicasWork
from ludus.checks.playing import playing
from ludus.engines.base import OnTokens
from ludus.engines.routed.engine import route
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.rollout.mixture import Source
from ludus.rollout.pool import RolloutPool
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import GroupStream
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled

_GROUP = 4
_WORD = "word "


class TwoTurnAgent:
    """An agent of two turns, through the gateway."""

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        messages = [{"role": "user", "content": data["question"]}]
        for _ in range(2):
            body = {"model": "default", "messages": messages}
            headers = {"authorization": f"Bearer {api_key}"}
            response = await http_client.post(f"{base_url}/chat/completions", json=body, headers=headers)
            response.raise_for_status()
            messages += [response.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        return 1.0


class SmallEngine(ScriptedEngine):
    """Samples a limited number of calls at once; others wait in order of arrival. For one event loop."""

    def __init__(self, answer: str, tokenizer: Tokenizer, *, token_s: float, slots: int) -> None:
        super().__init__(lambda _: answer, tokenizer, token_delay_s=token_s)
        self._slots = asyncio.Semaphore(slots)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        async with self._slots:
            return await super().generate(call, on_tokens)


async def measure_replicas(work: ReplicasWork) -> dict[str, Any]:
    """Episodes per second, and the number of calls of each replica."""
    text = ChatText.load(Path(work.model))
    engines = [
        SmallEngine(_WORD * work.new_tokens, text.tokenizer, token_s=work.token_s, slots=work.slots)
        for _ in range(work.replicas)
    ]
    engine = route(engines, text.tokenizer, seed=work.seed)
    try:
        taken_s = await _play(work, Recorder(engine, text))
    finally:
        await engine.close()
    return {
        "work": f"{work.groups} groups",
        "episodes_per_s": work.groups * _GROUP / taken_s,
        "calls": [replica.stats().num_calls for replica in engines],
    }


async def _play(work: ReplicasWork, recorder: Recorder) -> float:
    """Play the groups; returns the seconds that they took."""
    generation = GenerationSettings(n_samples=_GROUP, max_new_tokens=work.new_tokens)
    settings = RolloutSettings(max_concurrent_rollouts=work.at_once)
    rows = [{"question": f"Tell me about number {number}."} for number in range(work.groups + 1)]
    agent = resolve_workflow(TwoTurnAgent())
    async with playing(agent, recorder, generation, settings) as runner:
        stream = GroupStream([Source(rows)], seed=work.seed, shuffle=False)
        await runner.run(stream.group(work.groups).member(0, 0, None))  # warm-up of the process
        pool = RolloutPool(runner.run, stream, settings, n_samples=_GROUP, batch_size=work.groups)
        async with pool:
            started_at = time.perf_counter()
            await pool.take(work.groups)
            return time.perf_counter() - started_at
