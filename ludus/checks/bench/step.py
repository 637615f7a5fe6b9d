"""Measures a whole GRPO step of Ludus: the loop as run by `ludus.Trainer`, with an agent that uses the gateway.

Knows: the public API.  Knows not: peers, pairs, what a step consists of.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from typing import Any

from ludus.api.trainer import Trainer
from ludus.checks.bench.workloads import StepWork
from ludus.compat.config import Config
from ludus.loop.memory import peak_rss_mb
from ludus.loop.observer import Observer
from ludus.runs.metrics import Metrics


class SumAgent:
    """Asks one question; the reward is 1 if the last number of the reply is the answer."""

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        body = {"model": "default", "messages": [{"role": "user", "content": data["question"]}]}
        headers = {"authorization": f"Bearer {api_key}"}
        response = await http_client.post(f"{base_url}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        return sum_reward(response.json()["choices"][0]["message"]["content"] or "", data["answer"])


class Steps(Observer):
    """Observes a run: a line of measurements for each step."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_step(self, step: int, metrics: Metrics) -> None:
        line = {"step": step, "seconds": metrics["time/step_s"], "reward": metrics["rollout/reward"]}
        parts = ("rollout_s", "batch_s", "train_s", "publish_s")
        self.lines.append({**line, **{name: metrics.get(f"time/{name}", 0.0) for name in parts}})


def measure_step(work: StepWork) -> dict[str, Any]:
    """A line for each step: its number, seconds, the mean reward of its answers."""
    rows = [{"question": q, "answer": a} for q, a in zip(work.questions, work.answers, strict=True)]
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        Trainer(step_config(work, folder), rows).train(SumAgent, observer=steps)
    return {"steps": steps.lines, "peak_mb": peak_rss_mb()}


def step_config(work: StepWork, run_root: str) -> Config:
    """The defaults of TRL's GRPOTrainer as our settings; those equal to our own defaults are left out."""
    return work.config(
        f"run_root={run_root}",
        f"seed={work.seed}",
        f"total_train_steps={work.steps}",
        f"train_dataset.batch_size={work.groups}",
        f"gconfig.n_samples={work.samples}",
        f"gconfig.max_new_tokens={work.new_tokens}",
        f"trainer.optimizer.lr={work.lr}",
        "trainer.optimizer.betas=[0.9, 0.999]",
        "trainer.optimizer.decay=linear",
    )


def sum_reward(reply: str, answer: str) -> float:
    """1 if the last number of the reply is the answer, else 0."""
    numbers = re.findall(r"-?\d+", reply)
    return float(bool(numbers) and numbers[-1] == answer)
