"""Applies RULER to groups of trajectories: the judge's scores become their rewards.

Knows: trajectories, groups, judgements of attempts.  Knows not: prompts, HTTP, training.
Invariants: the given group is not changed; its copy keeps everything, including the original rewards as a metric; a
score becomes the reward of the trajectory that the judge named.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ludus.compat import overrides
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import BackendError
from ludus.rewards.chat.base import ChatModel
from ludus.rewards.judge.attempts import Attempt
from ludus.rewards.judge.prompt import DEFAULT_RUBRIC
from ludus.rewards.judge.ruler import (
    DEFAULT_JUDGE,
    DEFAULT_OPTIONS,
    Judgement,
    JudgeOptions,
    conversation_of,
    judge_attempts,
)
from ludus.rewards.judge.scores import TrajectoryScore

logger = logging.getLogger(__name__)


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: str | ChatModel = DEFAULT_JUDGE,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
    options: JudgeOptions = DEFAULT_OPTIONS,
) -> TrajectoryGroup | None:
    """A copy of the group whose rewards are the judge's scores, from 0 to 1; other arguments as for `ruler`.

    The original reward of each trajectory becomes the metric `independent_reward`; the judge's explanation is added to
    its logs. None: the judge failed, and `swallow_exceptions` is set; a warning says why.
    Raises BackendError if the judge fails without `swallow_exceptions`. Raises UserError if its name, key or address is
    wrong, even with `swallow_exceptions`, because all other groups would fail for the same reason.
    """
    if len(group) == 0:
        return group
    if isinstance(judge_model, str) and (base_url := overrides.address(judge_model)) is not None:
        extra_litellm_params = {**(extra_litellm_params or {}), "api_base": base_url}
    try:
        judgement = await judge_attempts(
            [attempt_of_trajectory(trajectory) for trajectory in group],
            judge_model,
            extra_litellm_params,
            rubric=rubric,
            debug=debug,
            options=options,
        )
    except BackendError as error:
        if not swallow_exceptions:
            raise
        logger.warning("a group of %d trajectories is left out, because its judge failed: %s", len(group), error)
        return None
    judged = group.with_trajectories(map(_rewarded, group, judgement.scores))
    judged.metrics = {**group.metrics, **_metrics(judgement)}
    return judged


def attempt_of_trajectory(trajectory: Trajectory) -> Attempt:
    """The attempt of a judge's prompt: all conversations of the trajectory."""
    return Attempt(tuple(conversation_of(each.messages(), each.tools) for each in trajectory.histories()))


def _rewarded(trajectory: Trajectory, score: TrajectoryScore) -> Trajectory:
    # If it was judged before, its reward is that score; keep the original reward.
    independent = trajectory.metrics.get("independent_reward", trajectory.reward)
    changes = {
        "reward": score.score,
        "metrics": {**trajectory.metrics, "independent_reward": independent, "ruler_score": score.score},
        "metadata": dict(trajectory.metadata),
        "logs": [*trajectory.logs, f"RULER explanation: {score.explanation}"],
        "messages_and_choices": list(trajectory.messages_and_choices),
    }
    return trajectory.model_copy(update=changes)


def _metrics(judgement: Judgement) -> dict[str, float]:
    usage = judgement.usage
    cost = {} if usage.cost_usd is None else {"judge/cost_usd": usage.cost_usd}
    return {
        "judge/calls": usage.num_calls,
        "judge/cached": usage.num_cached,
        "judge/prompt_tokens": usage.num_prompt_tokens,
        "judge/completion_tokens": usage.num_completion_tokens,
        "judge/unusable_answers": judgement.num_unusable,
        "judge/clamped_scores": judgement.num_clamped,
        "judge/rescaled_scores": judgement.num_rescaled,
        "judge/spread": judgement.spread,
        **cost,
    }
