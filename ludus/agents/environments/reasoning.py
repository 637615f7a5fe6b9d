"""Tasks of reasoning-gym: a question, one answer, and the task's own score.

Knows: reasoning-gym's data sets.  Knows not: agents, tokens.
Invariant: a row identifies its own question, so that one environment can score rows of any task and any seed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ludus.agents.environments.base import EnvironmentService
from ludus.errors import UserError
from ludus.runs.spans import span

_KEY = "reasoning_gym"


def reasoning_gym_rows(task: str, *, size: int, seed: int, **config: Any) -> list[dict[str, Any]]:
    """Rows with the questions of a task, for training or evaluation; another seed gives other questions.

    config: the task's own settings, such as its difficulty. Raises UserError if reasoning-gym is not installed, or does
    not know the task.
    """
    source = {"task": task, "size": size, "seed": seed, "config": config}
    dataset = _dataset(json.dumps(source))
    return [{"question": dataset[idx]["question"], _KEY: source, "index": idx} for idx in range(size)]


class ReasoningGymEnvironment(EnvironmentService):
    """Asks the question of a row that `reasoning_gym_rows` made, and scores one answer to it."""

    def __init__(self) -> None:
        self._row: Mapping[str, Any] | None = None
        """None: this instance only makes others, by `for_episode`."""

    def for_episode(self, row: Mapping[str, Any]) -> ReasoningGymEnvironment:
        if _KEY not in row or "index" not in row:
            raise UserError(f"the row has no {_KEY!r} and 'index'; make rows with reasoning_gym_rows(task, …)")
        played = ReasoningGymEnvironment()
        played._row = row
        return played

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        _, entry = await self._find()
        return entry["question"], dict(entry["metadata"])

    async def step(self, action: str) -> tuple[None, float, bool, bool, dict[str, Any]]:
        """Score the answer, or the part of it in `<answer>` tags; the episode then ends."""
        dataset, entry = await self._find()
        before, tag, rest = action.rpartition("<answer>")
        answer = (rest.partition("</answer>")[0] if tag else before or rest).strip()
        with span("reward", f"reasoning-gym {dataset.config.__class__.__name__}", inputs=answer) as seen:
            score = float(await asyncio.to_thread(dataset.score_answer, answer, entry))
            seen.outputs = score
        return None, score, True, False, {"success": score >= 1.0, "answer": entry["answer"]}

    async def _find(self) -> tuple[Any, Any]:
        if self._row is None:
            raise UserError("this environment is of no row; play it through an agent, or call for_episode(row)")
        dataset = await asyncio.to_thread(_dataset, json.dumps(self._row[_KEY]))
        return dataset, dataset[int(self._row["index"])]


@lru_cache(maxsize=64)
def _dataset(source: str) -> Any:
    described = json.loads(source)
    try:
        reasoning_gym = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise UserError(f"reasoning-gym is not installed ({error.name}): pip install 'ludus[environments]'") from None
    try:
        return reasoning_gym.create_dataset(
            described["task"], size=described["size"], seed=described["seed"], **described["config"]
        )
    except (ValueError, TypeError, AssertionError) as error:
        raise UserError(f"reasoning-gym makes no {described['task']!r} of {described['config']}: {error}") from None
