"""Supervised training through the public surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.api.play import play
from ludus.config import Config

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
