"""Measures what rollouts that run ahead of training gain for agents with slow tools.

Knows: a run's configuration, the public API, agents behind an SDK.  Knows not: pairs, terminals.

The recipe's agent is unchanged: a hook of its HTTP client waits before every call of the model, like tools that the
agent calls in between. There are no such delays in evaluations.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ludus.agents.plain import WorkflowAdapter, from_workflow
from ludus.api.trainer import Trainer
from ludus.checks.bench.curves import last_mean
from ludus.checks.bench.step import Steps
from ludus.checks.bench.workloads import OverlapWork
from ludus.compat.config import Config, load_config
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.runs.metrics import Metrics

# Share of the last steps whose rewards show what was learned.
_LAST_SHARE = 0.25


def with_slow_tools(agent: WorkflowAdapter, work: OverlapWork) -> Callable[..., Awaitable[object]]:
    """The agent of a recipe, with a slow tool before each of its calls of the model."""
    rng = random.Random(work.seed)

    async def use_tools(_request: object) -> None:
        for _ in range(work.tools):
            await asyncio.sleep(rng.uniform(work.least_s, work.most_s))

    async def run(data: Mapping[str, Any], *, http_client: Any, base_url: str, api_key: str) -> object:
        http_client.event_hooks = {**http_client.event_hooks, "request": [use_tools]}
        given = {"base_url": base_url, "api_key": api_key, "http_client": http_client}
        passed = {name: value for name, value in given.items() if agent.accepted is None or name in agent.accepted}
        returned: Any = agent.function(data, **passed, **agent.extra_kwargs)
        return await returned

    return run


class Ages(Steps):
    """Observes a run: as `Steps`, and the age of the tokens of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.ages: list[float] = []
        self.num_episodes = 0

    def on_step(self, step: int, metrics: Metrics) -> None:
        super().on_step(step, metrics)
        self.ages.append(metrics.get("staleness/mean_versions", 0.0))
        self.num_episodes += int(metrics["rollout/episodes"])


def measure_overlap(work: OverlapWork) -> dict[str, Any]:
    """Episodes per second from the first to the last, reward of the last steps, success on held-out rows."""
    observer = Ages()
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        config = overlap_config(work, folder)
        agent = with_slow_tools(_agent_of(config), work)
        evaluated = (config.eval_workflow or config.workflow) if config.eval.is_asked else None
        summary = Trainer(config).train(agent, eval_workflow=evaluated, observer=observer)
    reward, error = last_mean(observer.lines, max(2, round(len(observer.lines) * _LAST_SHARE)))
    return {
        "ahead": work.ahead,
        "episodes_per_s": observer.num_episodes / summary.train_seconds,
        "step_s": summary.train_seconds / max(1, summary.steps),
        "steps": summary.steps,
        "reward": reward,
        "reward_error": error,
        "success": summary.success_after,
        "stale_versions": sum(observer.ages) / max(1, len(observer.ages)),
        "masked": dict(summary.ledger.masked),
    }


def overlap_config(work: OverlapWork, run_root: str) -> Config:
    """The recipe's configuration with `ahead`, and a slot for every episode that may run concurrently."""
    plain = load_config(Path(work.run), work.overrides)
    under_way = (work.ahead + 1) * plain.train_dataset.batch_size * plain.gconfig.n_samples
    chosen = (
        f"run_root={run_root}",
        f"seed={work.seed}",
        f"rollout.max_head_offpolicyness={work.ahead}",
        f"rollout.max_concurrent_rollouts={under_way}",
        "eval.before=false",
    )
    return load_config(Path(work.run), (*work.overrides, *chosen))


def _agent_of(config: Config) -> WorkflowAdapter:
    if config.workflow is None or config.rollout.agent.mode != "inline":
        raise UserError(
            "this bench plays an agent that `workflow` names, with rollout.agent.mode 'inline'; the configuration has "
            f"workflow={config.workflow!r} and mode {config.rollout.agent.mode!r}"
        )
    return from_workflow(import_object(config.workflow), dict(config.workflow_kwargs or {}))
