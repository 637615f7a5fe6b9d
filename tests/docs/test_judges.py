"""Every example of docs/rewards.md runs, and prints what the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art import Trajectory, TrajectoryGroup
from ludus.rewards.judge.attempts import read_attempts
from ludus.rewards.providers import PROVIDERS, Provider
from tests.docs.pages import DOCS, blocks, run_block
from tests.rewards.conftest import Answer, Endpoint, completion, endpoint

__all__ = ["endpoint"]  # a fixture


def test_every_example_runs(
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model_folder: Path,
    tmp_path: Path,
) -> None:
    """With OpenAI's address on this machine, and a tiny model."""
    monkeypatch.chdir(tmp_path)

    def answer(body: dict[str, Any]) -> Answer:
        prompt = body["messages"][-1]["content"]
        if body["model"] == "o3":
            ids = read_attempts(prompt)
            return completion(json.dumps({"scores": [{"trajectory_id": each, "score": 0.5} for each in ids]}))
        tasks = [{"task": f"task {i}", "difficulty": 2} for i in range(6)]
        return completion(json.dumps({"scenarios": tasks}))

    endpoint.answers = [answer]
    monkeypatch.setitem(PROVIDERS, "openai", Provider(endpoint.base_url, "OPENAI_API_KEY"))  # type: ignore[arg-type]
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    messages = [{"role": "user", "content": "?"}]
    names: dict[str, Any] = {"group": TrajectoryGroup([Trajectory(messages_and_choices=messages) for _ in range(2)])}
    names["path"] = str(tiny_model_folder)
    for code, printed in blocks("rewards.md"):
        run_block(code, names)
        shown = capsys.readouterr().out
        assert printed is None or shown == printed
    assert [each.reward for each in names["judged_group"]] == [pytest.approx(0.35)] * 2
    assert len(names["train"]) == 4


def test_every_provider_is_on_the_page() -> None:
    """With the variable that its key is read from."""
    page = (DOCS / "rewards.md").read_text()
    for name, provider in PROVIDERS.items():
        assert name == "hosted_vllm" or f"`{name}/…`" in page, name
        assert provider.key_variable is None or f"`{provider.key_variable}`" in page, provider
