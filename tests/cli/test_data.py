"""`ludus data`: data sets as tables that agent loops train on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.api.rows import load_rows

PROBLEMS = {
    "train": [
        {"question": "What is 500 + 700?", "answer": "500+700=<<500+700=1200>>1200\n#### 1,200"},
        {"question": "Half of 3?", "answer": "3/2=1.5\n#### 1.5"},
    ],
    "test": [{"question": "What is 2 - 5?", "answer": "It is less than nothing.\n#### -3"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, problems in PROBLEMS.items():
        lines = [json.dumps(problem) for problem in problems]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_gsm8k_becomes_rows_of_a_tool_loop(folder: Path, ludus: Callable[..., Any]) -> None:
    """Prompt, solution, the loop's name and what its tool is created with, as verl's script writes them."""
    out = folder / "out"
    ended = ludus("data", "gsm8k", "--from", folder, "--out", out)
    assert ended.code == 0
    assert ended.out.splitlines() == [f"{out / 'train.parquet'}: 2 rows", f"{out / 'test.parquet'}: 1 rows"]
    row, _ = load_rows(out / "train.parquet")
    assert (row["data_source"], row["agent_name"]) == ("openai/gsm8k", "tool_agent")
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1200"}
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == "What is 500 + 700?" and "calc_gsm8k_reward" in row["prompt"][0]["content"]
    kwargs = row["extra_info"]["tools_kwargs"]
    assert kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1200"}}}
    (held_out,) = load_rows(out / "test.parquet")
    assert (held_out["extra_info"]["split"], held_out["reward_model"]["ground_truth"]) == ("test", "-3")


def test_rows_for_another_loop_name_no_tool(folder: Path, ludus: Callable[..., Any]) -> None:
    """A single turn has nobody to ask."""
    assert ludus("data", "gsm8k", "--from", folder, "--out", folder, "--agent", "single_turn_agent").code == 0
    row = load_rows(folder / "train.parquet")[0]
    assert row["agent_name"] == "single_turn_agent" and "tools_kwargs" not in row["extra_info"]
    assert "tool" not in row["prompt"][0]["content"]


def test_what_is_missing_or_broken_is_named(folder: Path, ludus: Callable[..., Any]) -> None:
    """A file that is not there, and a problem without a number at its end."""
    (folder / "test.jsonl").write_text('{"question": "Why?", "answer": "Because."}\n')
    ended = ludus("data", "gsm8k", "--from", folder, "--out", folder / "out")
    assert ended.code == 2 and "problem 0 of test must have" in " ".join(ended.err.split())
    (folder / "test.jsonl").unlink()
    ended = ludus("data", "gsm8k", "--from", folder, "--out", folder / "out")
    assert ended.code == 2 and "there is none of test.jsonl, test.parquet, test.json" in " ".join(ended.err.split())
