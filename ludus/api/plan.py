"""Makes the plan of a run, what it does and when it ends, from its configuration.

Knows: settings, sources of rows.  Knows not: agents, engines, files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ludus.algorithms.resolve import algorithm_of
from ludus.config import Config
from ludus.loop.batch import BatchRules
from ludus.loop.evaluate import EvalPlan
from ludus.loop.train import TrainPlan
from ludus.rollout.groups import GroupFilter
from ludus.rollout.mixture import Source


def train_plan(
    config: Config,
    sources: Sequence[Source],
    *,
    num_rows: int,
    evaluation: EvalPlan | None = None,
    accept: GroupFilter | None = None,
) -> TrainPlan:
    """The loop's plan. num_rows: in all datasets together; it says how many steps an epoch has."""
    batch_size, epochs = config.train_dataset.batch_size, config.total_train_epochs
    if epochs is None and config.total_train_steps is None and config.total_train_seconds is None:
        epochs = 1
    return TrainPlan(
        sources=sources,
        seed=config.seed,
        shuffle=config.train_dataset.shuffle,
        curriculum=config.train_dataset.curriculum if config.train_dataset.curriculum.is_on else None,
        batch_size=batch_size,
        n_samples=config.gconfig.n_samples,
        rollout=config.rollout,
        rules=BatchRules(
            algorithm=config.algorithm,
            turn_discount=config.rollout.agent.turn_discount,
            export_style=config.rollout.agent.export_style,
            row_tokens=config.trainer.row_tokens,
            max_token_age=config.rollout.max_token_age,
            accept=accept,
            loss_weights={name: source.loss_weight for name, source in config.train_dataset.mix.items()},
        ),
        evaluation=evaluation,
        eval_settings=config.eval,
        checkpoint=config.checkpoint,
        total_steps=config.total_train_steps if epochs is None else math.ceil(epochs * num_rows / batch_size),
        total_seconds=config.total_train_seconds,
        record_tokens=config.trainer.record_tokens,
        steps_key="total_train_steps" if epochs is None else "total_train_epochs",
    )


def with_decay_end(config: Config, plan: TrainPlan) -> Config:
    """The configuration with the number of steps over which learning rates decay filled in. The policy's excludes the
    steps in which only the critic warms up."""
    ended: dict[str, Any] = {}
    has_critic = "values" in algorithm_of(config.algorithm).needs.measured
    waits = {"trainer": config.critic.warmup_steps if has_critic else 0, "critic": 0}
    for name, waited in waits.items():
        settings = getattr(config, name)
        optimizer = settings.optimizer
        if optimizer.decay != "constant" and not optimizer.total_steps and plan.total_steps is not None:
            optimizer = optimizer.model_copy(update={"total_steps": max(1, plan.total_steps - waited)})
            ended[name] = settings.model_copy(update={"optimizer": optimizer})
    return config.model_copy(update=ended)
