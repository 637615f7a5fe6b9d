"""Small work for a tiny model: a few requests, rows of a few tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ludus.checks.bench.workloads import (
    PublishWork,
    SampleWork,
    StepWork,
    TrainWork,
    chat_encoder,
    sample_batches,
    sums,
)

OVERRIDES = ("model.dtype=float32",)


@pytest.fixture
def small_sample(tiny_model_folder: Path) -> SampleWork:
    batches = sample_batches(chat_encoder(tiny_model_folder), (1, 3))
    return SampleWork(str(tiny_model_folder), OVERRIDES, batches=batches, new_tokens=12, kv_bytes=2**24)


@pytest.fixture
def small_train(tiny_model_folder: Path) -> TrainWork:
    rows = tuple(tuple(range(5, 5 + 24)) + tuple(range(row, row + 8)) for row in range(50, 90, 10))
    return TrainWork(str(tiny_model_folder), OVERRIDES, rows=rows, shared_tokens=0, steps=2)


@pytest.fixture
def small_step(tiny_model_folder: Path) -> StepWork:
    questions, answers = sums(0, 6)
    return StepWork(
        str(tiny_model_folder),
        OVERRIDES,
        questions=questions,
        answers=answers,
        groups=2,
        samples=2,
        new_tokens=4,
        steps=2,
    )


@pytest.fixture
def small_publish(tiny_model_folder: Path) -> PublishWork:
    prompts = sample_batches(chat_encoder(tiny_model_folder), (2,))[0]
    return PublishWork(str(tiny_model_folder), OVERRIDES, prompts=prompts, new_tokens=40)


AGENT = """
class Asker:
    async def run(self, data, *, base_url, api_key, http_client):
        reward = 0.0
        for _ in range(2):
            body = {"model": "default", "messages": [{"role": "user", "content": data["question"]}]}
            headers = {"authorization": f"Bearer {api_key}"}
            response = await http_client.post(f"{base_url}/chat/completions", json=body, headers=headers)
            reward += len(response.json()["choices"][0]["message"]["content"] or "") % 3
        return reward
"""
RUN = """
name: asker
workflow: "{agent}:Asker"
train_dataset: {{path: "{rows}", batch_size: 2}}
model: {{path: "{model}", dtype: float32}}
engine: {{kv_bytes: 16777216}}
gconfig: {{n_samples: 2, max_new_tokens: 4}}
total_train_steps: 3
"""


@pytest.fixture
def run_file(tmp_path: Path, tiny_model_folder: Path) -> Path:
    agent, rows, run = tmp_path / "asker.py", tmp_path / "rows.jsonl", tmp_path / "run.yaml"
    agent.write_text(AGENT)
    rows.write_text("".join(json.dumps({"question": f"What is {number}?"}) + "\n" for number in range(4)))
    run.write_text(RUN.format(agent=agent, rows=rows, model=tiny_model_folder))
    return run
