"""The environment for math and code problems: one step, which judges every answer.

Knows: rows with solutions or tests, verifiers.  Knows not: agents, tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.agents.environments.base import EnvironmentService
from ludus.api.rows import read_file
from ludus.errors import UserError
from ludus.rewards.answers import math_verify_all, solutions_of
from ludus.rewards.programs import extract_code, tests_of, verify_program
from ludus.runs.spans import span

logger = logging.getLogger(__name__)

TASKS = {"math": "solutions", "code": "input_output"}
"""For each task, the column by which its rows are judged."""


class MathCodeSingleStepEnv(EnvironmentService):
    """Judges `(qid, answers)` by the row's task: mathematics by math-verify, programs by their tests in a sandbox."""

    def __init__(self, dataset_path: str | Sequence[str] | None = None) -> None:
        """dataset_path: JSON lines with the data of queries. None: rows contain their own solutions or tests."""
        paths = [dataset_path] if isinstance(dataset_path, str) else list(dataset_path or ())
        self.id2info: dict[str, dict[str, Any]] = {}
        self._row: dict[str, Any] | None = None
        """The row by which every query is judged. None: the data set's row of the query."""
        for path in paths:
            self.id2info.update(load_metadata(path)[0])

    def __repr__(self) -> str:
        return f"MathCodeSingleStepEnv({len(self.id2info)} queries)"

    def for_episode(self, row: Mapping[str, Any]) -> EnvironmentService:
        """An environment for the row; its own solutions or tests, if any, take precedence over the data set's."""
        if "solutions" not in row and "input_output" not in row:
            return self
        bound = MathCodeSingleStepEnv()
        bound._row = {"task": "code" if "input_output" in row else "math", **row}
        return bound

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[None, dict[str, Any]]:
        return None, {}

    async def step(self, action: tuple[str, Sequence[str]]) -> tuple[None, list[float], bool, bool, dict[str, Any]]:
        """Judge the answers: no observation, a reward of 1.0 or 0.0 for each, and the end."""
        qid, answers = action
        qid = str(qid).partition("@")[0]
        known = self.id2info if self._row is None else {qid: self._row}
        task = (known.get(qid) or {}).get("task", "math")
        if task not in TASKS:
            raise UserError(f"the query {qid!r} is of the task {task!r}; this environment judges {', '.join(TASKS)}")
        with span("reward", f"{task}-verify", inputs={"qid": qid, "answers": list(answers)}) as seen:
            if task == "math":
                rewards = await math_verify_all(answers, solutions_of(known, qid))
            else:
                tests = tests_of(known, qid)
                judging = (verify_program(extract_code(answer), tests) for answer in answers)
                rewards = list(await asyncio.gather(*judging))
            seen.outputs = rewards
        return None, rewards, True, False, {}


def load_metadata(path: str | Path) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """The rows of a file of JSON lines by query_id, and the number of rows of each task.

    A row without the columns of its task is left out with a warning.
    Raises UserError if the file is missing, is not JSON lines, or has no usable row.
    """
    if not str(path).endswith(".jsonl"):
        raise UserError(f"{str(path)!r} must be a file of JSON lines (.jsonl)")
    id2info: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for number, row in enumerate(read_file(Path(path).expanduser(), "the data set"), start=1):
        info = {"task": "math", **row}
        wrong = _what_is_wrong(info)
        if wrong is not None:
            logger.warning("row.left_out file=%s line=%d: %s", path, number, wrong)
            continue
        id2info[str(info["query_id"])] = info
        counts[info["task"]] += 1
    if not id2info:
        raise UserError(f"no row of {str(path)!r} has a query_id and what its task needs (solutions, or input_output)")
    return id2info, counts


def _what_is_wrong(info: Mapping[str, Any]) -> str | None:
    if info["task"] not in TASKS:
        return f"the task {info['task']!r} is none of {', '.join(TASKS)}"
    missing = [name for name in ("query_id", TASKS[info["task"]]) if info.get(name) is None]
    return f"it has no {missing[0]}" if missing else None
