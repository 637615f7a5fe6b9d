"""The single step in which answers are judged."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("math_verify")

from ludus.compat.realhf.math_code import MathCodeSingleStepEnv, load_metadata
from ludus.errors import UserError

TESTS = json.dumps({"inputs": ["2"], "outputs": ["4"]})
PROGRAM = "Here:\n```python\nprint(int(input()) * 2)\n```"


@pytest.fixture
def dataset(tmp_path):
    rows = [
        {"query_id": 1, "prompt": "2+2", "solutions": ["4"]},
        {"query_id": "c", "prompt": "double", "task": "code", "input_output": TESTS},
        {"query_id": "bad", "prompt": "no solution"},
        {"query_id": "chat", "prompt": "hi", "task": "rlhf"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def step(env, qid, answers):
    async def run():
        await env.reset()
        return await env.step((qid, answers))

    return asyncio.run(run())


@pytest.mark.usefixtures("sandbox")
def test_each_task_has_its_judge(dataset):
    """Mathematics and programs; a copy's mark in the id is left out."""
    env = MathCodeSingleStepEnv(dataset_path=dataset)
    assert step(env, "1@idx:0-1", ["it is 4", "5"]) == (None, [1.0, 0.0], True, False, {})
    assert step(env, "c", [PROGRAM, "no code"])[1] == [1.0, 0.0]
    with pytest.raises(UserError, match="no query 'zz'"):
        step(env, "zz", ["4"])


@pytest.mark.usefixtures("sandbox")
def test_rows_bring_their_own_solutions():
    """Then no file is needed, and held-out rows are judged as well."""
    env = MathCodeSingleStepEnv()
    assert step(env.for_episode({"question": "?", "solutions": ["7"]}), "row3", ["7"])[1] == [1.0]
    assert step(env.for_episode({"input_output": TESTS}), "row4", [PROGRAM])[1] == [1.0]
    assert env.for_episode({"question": "?"}) is env
    with pytest.raises(UserError, match="of the task 'rlhf'"):
        step(env.for_episode({"task": "rlhf", "solutions": ["7"]}), "row5", ["7"])


def test_rows_that_cannot_be_used_are_left_out(dataset, caplog):
    """With a warning that says which and why; a file without any other is refused."""
    id2info, counts = load_metadata(dataset)
    assert sorted(id2info) == ["1", "c"] and counts == {"math": 1, "code": 1}
    assert "line=3: it has no solutions" in caplog.text and "'rlhf' is none of" in caplog.text
    with pytest.raises(UserError, match="JSON lines"):
        load_metadata("rows.csv")
    with pytest.raises(UserError, match="cannot read"):
        load_metadata("missing.jsonl")
