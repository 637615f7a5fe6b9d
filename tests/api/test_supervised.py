"""Supervised training through the public surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import ludus
from ludus.api.play import play
from ludus.config import Config
from ludus.text.tokenizer import Tokenizer

ROWS = [{"messages": [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": "The answer is 42"}]}]


def make_config(model: Path, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "trainer": {"optimizer": {"lr": 1e-2}},
    }
    return Config(**values, **changes)


def test_the_saved_model_says_what_it_was_shown(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Twenty steps on one conversation lower its loss to a tenth, and the saved model answers with it."""
    losses: list[float] = []
    steps = ludus.train_supervised(
        make_config(tiny_model_folder),
        ROWS,
        tmp_path / "taught",
        ludus.SftSettings(epochs=20),
        on_step=lambda step, metrics: losses.append(metrics["train/nll"]),
    )
    assert steps == len(losses) == 20 and losses[-1] < losses[0] / 10

    async def ask(data: dict[str, Any], *, base_url: str, http_client: Any) -> float:
        messages = [{"role": "user", "content": "Guess."}]
        await http_client.post(f"{base_url}/chat/completions", json={"messages": messages, "temperature": 0})
        return 0.0

    taught = make_config(tmp_path / "taught", gconfig={"n_samples": 1, "max_new_tokens": 32})
    (episode,) = play(ask, [{}], config=taught)
    assert episode.session.turns[0].reply.content == "The answer is 42"


def test_a_folder_that_cannot_be_written_is_named_before_training(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A file in the folder's place is an error at once."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(ludus.UserError, match=r"cannot save a model in '.*taken/model'"):
        ludus.train_supervised(make_config(tiny_model_folder), ROWS, tmp_path / "taken" / "model")


@pytest.mark.parametrize("name", ["dpo", "kto", "orpo"])
def test_preferences_are_learned(name: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """Ten steps on one pair lower the loss, and the model that was saved says rather what is preferred."""
    rows = [{"prompt": "The answer is ", "chosen": "42", "rejected": "17"}]
    losses: list[float] = []
    config = make_config(tiny_model_folder, algorithm={"name": name, "loss": {"beta": 0.5}})
    steps = ludus.train_preferences(
        config,
        rows,
        tmp_path / "taught",
        ludus.SftSettings(epochs=10),
        on_step=lambda step, metrics: losses.append(metrics["train/loss"]),
    )
    assert steps == 10 and losses[-1] < 0.8 * losses[0]

    def odds(folder: Path) -> float:
        model, text = AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), Tokenizer.load(folder)
        scores = []
        for answer in ("42", "17"):
            ids = torch.tensor([text.encode(f"The answer is {answer}")])
            scores.append(float(-model(ids, labels=ids).loss.detach()) * (ids.shape[1] - 1))
        return scores[0] - scores[1]

    assert odds(tmp_path / "taught") > odds(tiny_model_folder) + 1
