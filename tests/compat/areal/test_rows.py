"""Rows by the name of a data set, as AReaL's scripts ask for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ludus.compat.areal.api.cli_args import TrainDatasetConfig
from ludus.compat.areal.dataset import get_custom_dataset
from ludus.errors import UserError

ROWS = [{"question": "1+1?", "answer": "#### 2"}, {"question": "What is ten times ten?", "answer": "#### 100"}]
BOXED = "\nPlease put your final answer within \\boxed{}."


class Words:
    """A tokenizer whose tokens are words."""

    def encode(self, text: str) -> list[str]:
        return text.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the Hub has it: a file for each split, in a folder of the subset."""
    place = tmp_path / "gsm8k"
    (place / "main").mkdir(parents=True)
    (place / "main" / "train-00000.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (place / "main" / "test.jsonl").write_text(json.dumps(ROWS[0]))
    return place


def test_gsm8k_becomes_messages(folder: Path) -> None:
    """One split; the question asks for a box, other columns stay."""
    config = TrainDatasetConfig(path=str(folder), type="rl")
    rows = list(get_custom_dataset(split="train", dataset_config=config, tokenizer=Words()))
    assert [row["messages"][0]["content"] for row in rows] == [row["question"] + BOXED for row in ROWS]
    assert [row["answer"] for row in rows] == ["#### 2", "#### 100"] and "question" not in rows[0]
    assert len(get_custom_dataset(split="test", dataset_config=config)) == 1


def test_long_rows_are_left_out(folder: Path) -> None:
    """Counted in tokens of the question, 8 and 12 words with the box."""
    config = TrainDatasetConfig(path=str(folder), type="rl", max_length=9)
    assert len(get_custom_dataset("train", config, Words())) == 1
    with pytest.raises(UserError, match="pass tokenizer"):
        get_custom_dataset("train", config)


def test_other_rows_are_what_they_are(tmp_path: Path) -> None:
    """A file of the user's own, and a data set that was saved."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "mine.jsonl").write_text('{"prompt": 1}\n')
    assert list(get_custom_dataset(path=str(tmp_path / "mine.jsonl"))) == [{"prompt": 1}]
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"x": 1}, {"x": 2}])})
    saved.save_to_disk(str(tmp_path / "saved"))
    assert list(get_custom_dataset("train", path=str(tmp_path / "saved"))) == [{"x": 1}, {"x": 2}]
    with pytest.raises(UserError, match="no split 'test'; there are train"):
        get_custom_dataset("test", path=str(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("geometry3k", "rl", "has pictures"),
        ("openai/gsm8k", "sft", "train_supervised"),
        (".", "rl", "has no train.jsonl"),
    ],
)
def test_what_cannot_be_read_is_said(path: str, kind: str, said: str, tmp_path: Path) -> None:
    """With what to do instead."""
    with pytest.raises(UserError, match=said):
        get_custom_dataset("train", path=str(tmp_path) if path == "." else path, type=kind)
