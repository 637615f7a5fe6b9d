"""Small work for a tiny model: a few requests, rows of a few tokens."""

from __future__ import annotations

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
