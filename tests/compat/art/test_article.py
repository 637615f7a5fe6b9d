"""The article's code with one changed import, its agent filled in, its judge scripted and its model small."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ludus.compat.art as art
from ludus.compat.art.rewards import ruler_score_group
from ludus.rewards.chat.scripted import ScriptedChatModel
from ludus.rewards.judge.attempts import read_attempts

SMALL = {"model": {"dtype": "float32"}, "engine": {"kv_bytes": 2**22}, "gconfig": {"max_new_tokens": 8}}


@dataclass
class Scenario:
    question: str


def by_length(messages: Sequence[Mapping[str, Any]]) -> str:
    """A judge that likes short answers, and is asked no more than that."""
    attempts = read_attempts(messages[1]["content"])
    lengths = {name: len(one.main.messages[-1]["content"]) for name, one in attempts.items()}
    scores = [
        {"trajectory_id": name, "explanation": "short", "score": 1 - lengths[name] / (1 + max(lengths.values()))}
        for name in attempts
    ]
    return json.dumps({"scores": scores})


async def rollout(model: art.Model[Any], scenario: Scenario) -> art.Trajectory:
    openai_client = model.openai_client()
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Answer."},
            {"role": "user", "content": scenario.question},
        ]
    )
    completion = await openai_client.chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages()
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


def test_the_article(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is registered or configured by hand: rollouts are gathered and judged, the model is trained."""
    monkeypatch.chdir(tmp_path)
    model: art.TrainableModel[None] = art.TrainableModel(
        name="agent-001", project="my-agentic-task", base_model=str(tiny_model_folder), _internal_config=SMALL
    )
    scenarios = [Scenario("How many?"), Scenario("How much?")]
    judge = ScriptedChatModel(by_length)

    async def main() -> None:
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in scenarios),
            after_each=lambda group: ruler_score_group(group, judge, swallow_exceptions=True),
        )
        result = await model.train(groups)
        assert (len(judge.asked), result.step) == (2, 1)
        assert result.metrics["ledger/trained"] == result.metrics["ledger/sampled"] > 0
        assert all(each.metrics["ruler_score"] == each.reward for group in groups for each in group)
        await model.backend().close()

    asyncio.run(main())
    assert (tmp_path / "runs/my-agentic-task/models/agent-001/trajectories/train/0001.jsonl").exists()
