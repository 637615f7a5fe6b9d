"""Measures the cost of a tracker: episodes of an agent with a tool, stored in a run's folder, with it and without.

Knows: the model as in a run, a run's folder, where trackers write on this machine.  Knows not: pairs, terminals.

The tracker is opened before the clock starts, as the start of its process is not part of an episode's cost. The time to
send what is left when the clock stops is reported as `leaving_s`, and does not count as time of the episodes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.api.local import LocalModel, open_local
from ludus.api.play import open_runner
from ludus.checks.bench.workloads import TraceWork
from ludus.compat.config import Config
from ludus.episodes.archive import RunArchive
from ludus.rollout.mixture import derive_seed
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.spans import span
from ludus.runs.store import RunStore
from ludus.runs.trackers.select import open_trackers
from ludus.types import ChatRequest, Episode, Message, Sampling

_TURNS = 3
_WARM_UP = 8
"""Episodes before the clock starts."""


class TalkingAgent:
    """An agent with a tool, whose answers have the same number of tokens with and without tracing."""

    name = "talking"

    def __init__(self, new_tokens: int) -> None:
        self._new_tokens = new_tokens

    async def setup(self) -> None:
        """Nothing to set up."""

    async def close(self) -> None:
        """Nothing to close."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> float:
        session, messages = context.session, [Message("user", data["question"])]
        assert session is not None, "the episode must run in this process"
        for _ in range(_TURNS):
            sampling = Sampling(max_new_tokens=self._new_tokens, ignore_eos=True)
            (turn,) = await session.complete(ChatRequest(tuple(messages), sampling=sampling))
            with span("tool", "count", inputs={"text": turn.reply.content}) as counted:
                counted.outputs = f"{len((turn.reply.content or '').split())} words"
            messages += [turn.reply, Message("user", f"{counted.outputs}. Go on.")]
        return 1.0


async def measure_trace(work: TraceWork) -> dict[str, Any]:
    """Tokens per second of the episodes, and seconds to send the remaining traces after the last of them."""
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        chosen = [f"run_root={folder}", "name=bench"]
        if work.tracker is not None:
            chosen += [f"trackers={work.tracker}", *_here(work.tracker, folder)]
        config = work.config(*chosen)
        async with open_local(config) as local:
            return await _measure(work, config, local)


def _here(tracker: str, folder: str) -> list[str]:
    """The settings with which the tracker writes on this machine. A collector's address is given by the user."""
    if tracker == "mlflow":
        return [f"trackers.mlflow.tracking_uri=sqlite:///{folder}/mlruns.db"]
    return ["trackers.wandb.mode=offline"] if tracker == "wandb" else []


async def _measure(work: TraceWork, config: Config, local: LocalModel) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        store = stack.enter_context(RunStore.create(config.run_root, config.name, config.to_yaml()))
        telling = stack.enter_context(ExitStack())
        trackers = telling.enter_context(open_trackers(config.trackers, config.name, store.folder))
        opening = open_runner(
            local, config, Players({"": TalkingAgent(work.new_tokens)}), RunArchive(store), config.gconfig
        )
        runner = await stack.enter_async_context(opening)
        await _play(runner, work, "warm", _WARM_UP)
        for each in trackers:
            await asyncio.to_thread(each.wait_opened)
        started_at = time.perf_counter()
        episodes = await _play(runner, work, "timed", work.episodes)
        taken_s = time.perf_counter() - started_at
        num_late = sum(each.num_behind for each in trackers)
        await asyncio.to_thread(telling.close)
        leaving_s = time.perf_counter() - started_at - taken_s
    num_tokens = sum(episode.session.num_sampled_tokens for episode in episodes)
    return {
        "work": f"{work.episodes} episodes",
        "tokens_per_s": num_tokens / taken_s,
        "episodes_per_s": len(episodes) / taken_s,
        "late_traces": num_late,
        "leaving_s": leaving_s,
    }


async def _play(runner: EpisodeRunner, work: TraceWork, name: str, number: int) -> list[Episode]:
    slots = asyncio.Semaphore(work.at_once)

    async def play_one(idx: int) -> Episode:
        data = {"question": work.questions[idx % len(work.questions)]}
        seed = derive_seed(work.seed, name, idx)
        task = EpisodeTask(f"{name}{idx}", f"{name}{idx // 4}", f"row{idx // 4}", data, seed=seed, step=1)
        async with slots:
            return await runner.run(task)

    return await asyncio.gather(*(play_one(idx) for idx in range(number)))
