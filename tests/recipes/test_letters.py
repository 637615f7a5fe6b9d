"""The recipe of letters: its rows, its reward, and its agent in both modes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ludus
from ludus.import_strings import import_object

RECIPE = Path(__file__).parents[2] / "recipes" / "letters"


def test_rows_are_held_out() -> None:
    """No task stands on both sides, and every letter is trained."""
    held_out, training = (import_object(f"{RECIPE}/words.py:{name}")() for name in ("held_out", "training"))
    assert (len(held_out), len(training)) == (36, 144)
    assert not {str(row) for row in held_out} & {str(row) for row in training}
    assert {row["letter"] for row in held_out} <= {row["letter"] for row in training}


@pytest.mark.parametrize(
    ("text", "finish_reason", "reward"),
    [
        ("Bear", "stop", 1.0),
        (" bear. ", "stop", 1.0),
        ("Cat", "stop", 0.5),
        ("Bears are animals", "stop", 0.5),
        ("Bear", "length", 0.5),
        ("A bear", "stop", 0.0),
        (None, "stop", 0.0),
    ],
)
def test_rewards(text: str | None, finish_reason: str, reward: float) -> None:
    """Half for one word, half for its first letter."""
    choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason=finish_reason)
    assert import_object(f"{RECIPE}/agent.py:score")(choice, "B") == reward


@pytest.mark.parametrize("mode", ["inline", "subproc"])
def test_the_agent_plays_in_both_modes(mode: str, tiny_model_folder: Path) -> None:
    """Its file is the same, and so is what it gives."""
    values: dict[str, Any] = {
        "model": {"path": str(tiny_model_folder), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 1},
        "rollout": {"agent": {"mode": mode}},
    }
    row = import_object(f"{RECIPE}/words.py:held_out")()[0]
    (episode,) = ludus.play(f"{RECIPE}/agent.py:LettersAgent", [row], config=ludus.Config(**values))
    assert episode.outcome.kind == "ok", episode.outcome
    assert set(episode.metrics) == {"success"}
