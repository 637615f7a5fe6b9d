"""Measures Ludus's sampling: from the first submit to the last token, and decoding compared with bare linear layers.

Knows: the engine as users of the library run it.  Knows not: peers, pairs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.api.local import LocalModel, open_local
from ludus.checks.bench.ceiling import (
    copied_bytes_per_s,
    decoding_bytes,
    linear_flops,
    linear_tokens_per_s,
    matrix_flops_per_s,
)
from ludus.checks.bench.profile import SAMPLING, Profiler
from ludus.checks.bench.workloads import SampleWork
from ludus.checks.weights import NoNewWeights
from ludus.compat.config import Config
from ludus.types import Call, Sampling, TokenChunk

Prompts = Sequence[Sequence[int]]
# Larger than the caches of a processor or a card.
_COPIED_BYTES = 2**29


class Count:
    """Counts the tokens of all requests, and notifies when a given number has arrived."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._num = 0
        self.reached = [asyncio.Event() for _ in numbers]

    def __call__(self, chunk: TokenChunk) -> None:
        self._num += len(chunk.token_ids)
        for number, event in zip(self._numbers, self.reached, strict=True):
            if self._num >= number:
                event.set()


@dataclass(slots=True)
class Arrivals:
    """When the tokens of one request arrived."""

    at: list[float] = field(default_factory=list)

    def __call__(self, chunk: TokenChunk) -> None:
        self.at.extend([time.perf_counter()] * len(chunk.token_ids))


async def measure_sample(work: SampleWork) -> dict[str, Any]:
    """For each number of requests, tokens per second overall and of decoding only, and the ceiling of the latter."""
    config = sampling_config(work)
    rows = []
    async with open_local(config) as local:
        device = local.model.head_weight.device
        product_flops_per_s = matrix_flops_per_s(device)
        for number, prompts in enumerate(work.batches):
            await sample(local, prompts, work, name=f"warm-up {number}")
            await local.engine.publish(number + 1, NoNewWeights())
            below = linear_tokens_per_s(local.model, len(prompts))
            taken_s, arrivals = await sample(local, prompts, work, name=f"measured {number}")
            above = linear_tokens_per_s(local.model, len(prompts))
            decoded = decoding_rate(arrivals)
            # prompts plus half of the answers, the average number of cached tokens
            num_cached = sum(map(len, prompts)) + len(prompts) * work.new_tokens // 2
            read = decoding_bytes(local.model, num_cached) * decoded / len(prompts)
            rows.append(
                {
                    "requests": len(prompts),
                    "tokens_per_s": len(prompts) * work.new_tokens / taken_s,
                    "decode_tokens_per_s": decoded,
                    "ceiling_share": 2 * decoded / (below + above),
                    "bandwidth_share": read / copied_bytes_per_s(_COPIED_BYTES, device),
                    "matrix_share": linear_flops(local.model) * decoded / product_flops_per_s,
                }
            )
    return {"rows": rows}


async def profile_sample(work: SampleWork) -> dict[str, Any]:
    """The profile of a decoding step, without prefill, for the first number of requests."""
    config = sampling_config(work)
    prompts = work.batches[0]
    async with open_local(config) as local:
        await sample(local, prompts, work, name="warm-up")
        profiler, engine = Profiler(), local.engine
        count = Count([len(prompts) * work.new_tokens // 4, len(prompts) * work.new_tokens * 3 // 4])
        calls = sampling_calls(prompts, work.new_tokens, seed=work.seed, name="profiled")
        tasks = [asyncio.create_task(engine.generate(call, count)) for call in calls]
        await count.reached[0].wait()
        # publishing runs code on the engine's thread between two steps, so the profiler is started that way
        await engine.publish(1, NoNewWeights(profiler.start))
        num_before = engine.stats().num_sampled_tokens
        await count.reached[1].wait()
        num_sampled = engine.stats().num_sampled_tokens - num_before
        await engine.publish(2, NoNewWeights(profiler.stop))
        await asyncio.gather(*tasks)
    return profiler.shares(SAMPLING, num_steps=round(num_sampled / len(prompts)))


def sampling_config(work: SampleWork) -> Config:
    """A configuration with room for all requests at once."""
    return work.config(f"engine.kv_bytes={work.kv_bytes}", f"engine.max_running={max(map(len, work.batches))}")


async def sample(local: LocalModel, prompts: Prompts, work: SampleWork, *, name: str) -> tuple[float, list[Arrivals]]:
    """Seconds from the first submit to the last token, and the arrival times of each request's tokens."""
    arrivals = [Arrivals() for _ in prompts]
    calls = sampling_calls(prompts, work.new_tokens, seed=work.seed, name=name)
    started_at = time.perf_counter()
    pairs = zip(calls, arrivals, strict=True)
    answers = await asyncio.gather(*(local.engine.generate(call, arrived) for call, arrived in pairs))
    taken_s = time.perf_counter() - started_at
    assert all(len(answer.token_ids) == work.new_tokens for answer in answers), "an answer ended early"
    return taken_s, arrivals


def sampling_calls(prompts: Prompts, new_tokens: int, *, seed: int, name: str) -> list[Call]:
    """A call for each prompt; its answer has exactly `new_tokens` tokens."""
    return [
        Call(
            id=f"{name}-{idx}",
            session_id=name,
            prompt_ids=tuple(prompt),
            sampling=Sampling(max_new_tokens=new_tokens, ignore_eos=True, seed=seed + idx),
        )
        for idx, prompt in enumerate(prompts)
    ]


def decoding_rate(arrivals: Sequence[Arrivals]) -> float:
    """Tokens per second while all requests were decoding: from when the last one began until the first one ended."""
    last = max(arrivals, key=lambda each: each.at[0])
    first_end = min(each.at[-1] for each in arrivals)
    at = [moment for moment in last.at if moment <= first_end]
    return len(arrivals) * (len(at) - 1) / (at[-1] - at[0]) if len(at) > 1 else float("nan")
