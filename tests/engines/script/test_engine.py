"""Agents that are tried against written answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.api.play import play
from ludus.config import load_config
from ludus.engines.script.engine import read_answers
from ludus.errors import UserError


async def agent(data: Any, *, base_url: str, http_client: httpx.AsyncClient) -> float:
    body = {"messages": [{"role": "user", "content": "Guess."}]}
    answer = (await http_client.post(f"{base_url}/chat/completions", json=body)).json()
    return float(answer["choices"][0]["message"]["content"])


def test_an_agent_plays_against_a_file(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The answers come in turn, and from the first again."""
    (tmp_path / "answers.txt").write_text("7\n\n8\n")
    config = load_config(
        None,
        [
            f"model.path={tiny_model_folder}",
            "engine.kind=scripted",
            f"engine.answers={tmp_path / 'answers.txt'}",
            "gconfig.n_samples=3",
            "rollout.max_concurrent_rollouts=1",
        ],
    )
    assert [each.reward for each in play(agent, [{}], config=config)] == [7.0, 8.0, 7.0]


def test_files_of_answers(tmp_path: Path) -> None:
    """Lines, or JSON texts; what is neither is named with its line."""
    (tmp_path / "a.jsonl").write_text('"one\\ntwo"\n"three"\n')
    assert read_answers(tmp_path / "a.jsonl") == ["one\ntwo", "three"]
    (tmp_path / "b.jsonl").write_text('"one"\n{"a": 1}\n')
    (tmp_path / "c.txt").write_text("\n")
    for name, match in (("b.jsonl", r"b\.jsonl:2 must be a JSON text"), ("c.txt", "is empty"), ("d", "cannot be read")):
        with pytest.raises(UserError, match=match):
            read_answers(tmp_path / name)
