"""Scores trajectories without a reward: by the run's reward function, the row's data source, or its tools.

Knows: outputs, rows, functions in verl's form.  Knows not: the record, groups.

Only the model's text is scored, not the results of tools: a tool that prints the solution must not earn the reward.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from numbers import Real
from pathlib import Path
from typing import Any

from ludus.agents.signatures import is_async
from ludus.compat.verl.data_sources import VERIFIERS, default_compute_score, verifier_of
from ludus.compat.verl.output import AgentLoopOutput
from ludus.compat.verl.settings import CustomRewardSettings
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.errors import UserError
from ludus.import_strings import import_function
from ludus.runs.spans import span

ComputeScore = Callable[..., Any]
"""(data_source, solution_str, ground_truth, extra_info) to a number, or a mapping with `score`; async or not."""


@dataclass(frozen=True, slots=True)
class Score:
    """The reward and metrics of a trajectory."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


def load_compute_score(settings: CustomRewardSettings) -> ComputeScore | None:
    """The run's reward function. None: none is named. Raises UserError that says what is missing where."""
    if settings.path is None:
        return None
    path = str(Path(settings.path).expanduser()) if settings.path.endswith(".py") else settings.path
    function = import_function(f"{path}:{settings.name}", "reward.custom_reward_function")
    if not settings.reward_kwargs:
        return function
    return update_wrapper(partial(function, **settings.reward_kwargs), function)


async def score_outputs(
    outputs: Sequence[AgentLoopOutput],
    row: Mapping[str, Any],
    compute_score: ComputeScore | None,
    tokenizer: LoopTokenizer,
) -> Score:
    """The score of the last output. Raises UserError if there is none, or a function returns no number.

    compute_score: the run's function. None: the verifier of the row's data source is used, else tools or simulated
    user.
    """
    last, ground_truth = outputs[-1], (row.get("reward_model") or {}).get("ground_truth")
    if compute_score is None and (ground_truth is None or verifier_of(row.get("data_source")) is None):
        return _score_of_parts(last, row)
    function: ComputeScore = compute_score or default_compute_score
    begun = time.perf_counter()
    sampled = [token for token, is_own in zip(last.response_ids, last.response_mask, strict=True) if is_own]
    solution = tokenizer.decode(sampled, skip_special_tokens=True)
    given: dict[str, Any] = {
        "data_source": row.get("data_source"),
        "solution_str": solution,
        "ground_truth": ground_truth,
        "extra_info": {**(row.get("extra_info") or {}), "num_turns": last.num_turns, **last.extra_fields},
    }
    name = getattr(function, "__name__", type(function).__name__)
    with span("reward", name, inputs={"solution_str": solution, "ground_truth": ground_truth}) as record:
        # A blocking function must not block the event loop of the other episodes.
        calling = function(**given) if is_async(function) else asyncio.to_thread(function, **given)
        returned = record.outputs = await calling
    score = _read_score(returned, name, time.perf_counter() - begun)
    if function is default_compute_score:  # it says right or wrong
        return replace(score, metrics={**score.metrics, "success": max(score.reward, 0.0)})
    return score


def _read_score(returned: Any, name: str, took_s: float) -> Score:
    if not isinstance(returned, Mapping):
        number = _number(returned, name)
        return Score(number, {"acc": number}, took_s=took_s)  # as verl calls what a function returns alone
    if "score" not in returned:
        raise UserError(f"{name} returned {dict(returned)!r:.200}; a mapping must hold `score`")
    rest = {key: value for key, value in returned.items() if key != "score"}
    metrics = {str(key): float(value) for key, value in rest.items() if isinstance(value, Real)}
    if "acc" in metrics:  # what verl's validation reports, and evaluation here
        metrics.setdefault("success", metrics["acc"])
    metadata = {str(key): value for key, value in rest.items() if str(key) not in metrics}
    return Score(_number(returned["score"], name), metrics, metadata, took_s)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name} returned {value!r:.200}; allowed: a number, or a mapping with `score`") from None


def _score_of_parts(output: AgentLoopOutput, row: Mapping[str, Any]) -> Score:
    """The score by the tools' rewards of the whole trajectory, else by the simulated user's scores."""
    tools, answers = output.extra_fields.get("tool_scores"), output.extra_fields.get("turn_scores")
    if tools:
        return Score(sum(tools.values()))
    if answers:
        return Score(sum(answers))
    raise UserError(
        "nothing says what this trajectory is worth: set reward_score in the loop's output, name a function in "
        "reward.custom_reward_function.path, give a tool a calc_reward, or give the row a reward_model.ground_truth "
        f"and the data_source of a known data set (it is {row.get('data_source')!r}; known: {', '.join(VERIFIERS)})"
    )
