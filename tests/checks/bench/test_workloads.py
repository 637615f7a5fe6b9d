"""The work of both sides: same tokens, given sizes, reproducible."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ludus.checks.bench.workloads import TrainWork, chat_encoder, sample_batches, sums, train_rows, vocab_size
from ludus.errors import ConfigError


def test_no_two_prompts_are_alike(tiny_model_folder: Path) -> None:
    """Every request has a prompt of its own, through the model's chat template."""
    encode = chat_encoder(tiny_model_folder)
    batches = sample_batches(encode, (1, 4, 2))
    assert [len(batch) for batch in batches] == [1, 4, 2]
    prompts = [prompt for batch in batches for prompt in batch]
    assert len(set(prompts)) == 7 and prompts[1] == encode("Tell me a short story about number 1 and its friends.")


def test_rows_to_train_on(tiny_model_folder: Path) -> None:
    """dense: 8 rows of 256 tokens; group: 8 rows that share 200 tokens and have 32 of their own."""
    num_tokens = vocab_size(tiny_model_folder)
    dense, num_shared = train_rows("dense", num_tokens)
    assert [len(row) for row in dense] == [256] * 8 and num_shared == 0
    group, num_shared = train_rows("group", num_tokens)
    assert [len(row) for row in group] == [232] * 8 and num_shared == 200
    assert len({row[:200] for row in group}) == 1 and len({row[200:] for row in group}) == 8
    assert group == train_rows("group", num_tokens)[0] and max(max(row) for row in dense) < num_tokens


def test_sums_have_right_answers() -> None:
    """Each answer is the sum; another seed asks something else."""
    questions, answers = sums(3, 20)
    for question, answer in zip(questions, answers, strict=True):
        a, b = question.removeprefix("What is ").split("?")[0].split("+")
        assert int(a) + int(b) == int(answer)
    assert questions == sums(3, 20)[0] != sums(4, 20)[0]


def test_work_is_json_and_says_its_configuration() -> None:
    """Work fits into a file; overrides are on top of what a bench chooses, and wrong ones are refused."""
    work = TrainWork("some folder", ("trainer.row_tokens=64",), rows=((1, 2),))
    assert json.loads(json.dumps(asdict(work)))["rows"] == [[1, 2]]
    config = work.config("trainer.row_tokens=32", "seed=3")
    assert (config.model.path, config.trainer.row_tokens, config.seed) == ("some folder", 64, 3)
    with pytest.raises(ConfigError, match="trainer"):
        TrainWork("folder", ("trainer.rows=1",)).config()
