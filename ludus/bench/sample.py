"""Our sampling, measured: from the first submit to the last token, and its decoding against the linear layers alone.

Knows: the engine as users of the library run it.  Knows not: peers, pairs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.api.local import LocalModel, open_local
from ludus.bench.ceiling import linear_tokens_per_s
from ludus.bench.machine import versions
from ludus.bench.work import SampleWork
from ludus.types import Call, Sampling, TokenChunk

Prompts = Sequence[Sequence[int]]


class SameWeights:
    """A new version of which nothing changes: publishing it empties the cache of prompts."""

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        pass


@dataclass(slots=True)
class Arrivals:
    """When the tokens of one request arrived."""

    at: list[float] = field(default_factory=list)

    def __call__(self, chunk: TokenChunk) -> None:
        self.at.extend([time.perf_counter()] * len(chunk.token_ids))


async def measure_sample(work: SampleWork) -> dict[str, Any]:
    """For every number of requests the tokens a second, of all and of decoding alone, and the ceiling of the latter."""
    config = work.config(f"engine.kv_bytes={work.kv_bytes}", f"engine.max_running={max(map(len, work.batches))}")
    rows = []
    async with open_local(config) as local:
        for number, prompts in enumerate(work.batches):
            await sample(local, prompts, work, name=f"warm-up {number}")
            await local.engine.publish(number + 1, SameWeights())
            below = linear_tokens_per_s(local.model, len(prompts))
            taken_s, arrivals = await sample(local, prompts, work, name=f"measured {number}")
            above = linear_tokens_per_s(local.model, len(prompts))
            rows.append(
                {
                    "requests": len(prompts),
                    "tokens_per_s": len(prompts) * work.new_tokens / taken_s,
                    "decode_tokens_per_s": decoding_rate(arrivals),
                    "ceiling_tokens_per_s": (below + above) / 2,
                }
            )
    return {"rows": rows, "versions": versions()}


async def sample(
    local: LocalModel, prompts: Prompts, work: SampleWork, *, name: str
) -> tuple[float, list[Arrivals]]:
    """Seconds from the first submit to the last token, and when each request's tokens arrived."""
    arrivals = [Arrivals() for _ in prompts]
    calls = sampling_calls(prompts, work.new_tokens, seed=work.seed, name=name)
    started_at = time.perf_counter()
    pairs = zip(calls, arrivals, strict=True)
    answers = await asyncio.gather(*(local.engine.generate(call, arrived) for call, arrived in pairs))
    taken_s = time.perf_counter() - started_at
    assert all(len(answer.token_ids) == work.new_tokens for answer in answers), "an answer ended early"
    return taken_s, arrivals


def sampling_calls(prompts: Prompts, new_tokens: int, *, seed: int, name: str) -> list[Call]:
    """A call for each prompt whose answer has exactly so many tokens."""
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
    """Tokens a second while every request was decoding, timed by the one that began last, until the first ended."""
    last = max(arrivals, key=lambda each: each.at[0])
    first_end = min(each.at[-1] for each in arrivals)
    at = [moment for moment in last.at if moment <= first_end]
    return len(arrivals) * (len(at) - 1) / (at[-1] - at[0]) if len(at) > 1 else float("nan")
