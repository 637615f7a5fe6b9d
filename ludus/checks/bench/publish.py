"""Measures publishing weights during sampling: its cost, and what happens to sequences in flight.

Knows: engine, trainer, the model's files.  Knows not: pairs, peers.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.api.local import LocalModel, open_local
from ludus.checks.bench.ceiling import copied_bytes_per_s, finish
from ludus.checks.bench.sample import Count, sampling_calls
from ludus.checks.bench.workloads import PublishWork
from ludus.checks.weights import NoNewWeights
from ludus.models.load import load_model, save_model
from ludus.trainer.step import ModelTrainer

_ROUNDS = 5
# Bytes for each weight: the fp32 master is read, the bf16 weight is written.
_BYTES_PER_WEIGHT = 4 + 2


@dataclass(frozen=True, slots=True)
class Round:
    """All requests sampled once, with or without publishing half-way."""

    taken_s: float
    publish_s: float = 0.0
    """Seconds until the engine samples with the new weights."""
    copy_s: float = 0.0
    stale_tokens: int = 0
    """Tokens in flight whose keys and values are still those of the old weights, as counted by the engine."""
    carried_tokens: int = 0
    """Tokens sampled before publishing, in answers that continued after it."""


async def measure_publish(work: PublishWork) -> dict[str, Any]:
    """A row for keeping, and one for recomputing, keys and values."""
    rows = []
    for kv, keep in (("keep", "true"), ("recompute", "false")):
        # the setting has an effect only if weights are published during sampling
        config = work.config("rollout.max_head_offpolicyness=1", f"engine.keep_kv_on_publish={keep}")
        async with open_local(config) as local:
            trainer = local.trainer(config)
            await _round(local, None, work, "warm-up")
            published = await _round(local, trainer, work, "first publish")
            plain, rounds = [], []
            for number in range(_ROUNDS):
                plain.append(await _round(local, None, work, f"plain {number}"))
                rounds.append(await _round(local, trainer, work, f"published {number}"))
            num_bytes = _BYTES_PER_WEIGHT * sum(each.numel() for each in local.model.trainable.values())
            bare_s = num_bytes / copied_bytes_per_s(num_bytes, local.model.head_weight.device)
            copy_s = statistics.median(each.copy_s for each in rounds)
            extra_s = statistics.median(a.taken_s - b.taken_s for a, b in zip(rounds, plain, strict=True))
            rows.append(
                {
                    "kv": kv,
                    "seconds": statistics.median(each.publish_s for each in rounds),
                    "copy_s": copy_s,
                    "extra_s": extra_s,
                    "carried_tokens": round(statistics.median(each.carried_tokens for each in rounds)),
                    "stale_tokens": published.stale_tokens,
                    "ceiling_share": bare_s / copy_s,
                }
            )
    return {"rows": rows}


def measure_reload(work: PublishWork) -> dict[str, Any]:
    """The cost without shared tensors: the trainer writes the model to disk, the engine loads it."""
    config = work.config()
    model = load_model(config.model, seed=config.seed)
    taken_s = []
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        for _ in range(_ROUNDS + 1):
            started_at = time.perf_counter()
            save_model(model, Path(folder))
            load_model(config.model.model_copy(update={"path": folder}), seed=config.seed)
            finish(model.head_weight.device)
            taken_s.append(time.perf_counter() - started_at)
    return {"seconds": statistics.median(taken_s[1:])}


async def _round(local: LocalModel, trainer: ModelTrainer | None, work: PublishWork, name: str) -> Round:
    """Sample all requests. trainer: publishes when every answer has half its tokens. None: nothing is published."""
    count = Count([len(work.prompts) * work.new_tokens // 2])
    started_at = time.perf_counter()
    calls = sampling_calls(work.prompts, work.new_tokens, seed=work.seed, name=name)
    tasks = [asyncio.create_task(local.engine.generate(call, count)) for call in calls]
    publish_s = copy_s = 0.0
    stale_tokens = 0
    if trainer is not None:
        weights = trainer.publish()

        def copy() -> None:
            nonlocal copy_s
            began_at = time.perf_counter()
            weights.copy_into_shared()
            finish(local.model.head_weight.device)
            copy_s = time.perf_counter() - began_at

        await count.reached[0].wait()
        asked_at = time.perf_counter()
        await local.engine.publish(local.engine.stats().version + 1, NoNewWeights(copy))
        publish_s = time.perf_counter() - asked_at
        stale_tokens = local.engine.stats().num_stale_kv_tokens
    answers = await asyncio.gather(*tasks)
    taken_s = time.perf_counter() - started_at
    carried = [answer for answer in answers if len(set(answer.versions)) > 1]
    num_carried = sum(answer.versions.count(answer.versions[0]) for answer in carried)
    return Round(taken_s, publish_s, copy_s, stale_tokens, num_carried)
