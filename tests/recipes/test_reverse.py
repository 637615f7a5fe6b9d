"""The recipe of reversed letters: its rows, its reward, its demonstrations and its agent."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ludus
from ludus.import_strings import import_object

RECIPE = Path(__file__).parents[2] / "recipes" / "reverse"


def test_rows_are_held_out() -> None:
    """No row stands on both sides, and the same ones are drawn again."""
    held_out, training = (import_object(f"{RECIPE}/spelling.py:{name}")() for name in ("held_out", "training"))
    assert (len(held_out), len(training)) == (200, 1800)
    assert len({row["question"] for row in (*held_out, *training)}) == 2000
    assert held_out == import_object(f"{RECIPE}/spelling.py:held_out")()


@pytest.mark.parametrize(
    ("reply", "finish_reason", "reward"),
    [
        ("n i m a l", "stop", 1.0),
        ("n i m l a", "stop", 14 / 18),  # "n i m " and one letter are 7 characters of 9
        ("n i m", "stop", 10 / 14),  # 2 * 5 / (5 + 9)
        ("xyz", "stop", 0.0),
        ("n i m a l", "length", 0.0),
        (None, "stop", 0.0),
    ],
)
def test_rewards(reply: str | None, finish_reason: str, reward: float) -> None:
    """Characters in common, twice, over all of both; an answer must end."""
    choice = SimpleNamespace(message=SimpleNamespace(content=reply), finish_reason=finish_reason)
    assert import_object(f"{RECIPE}/agent.py:score")(choice, "n i m a l") == pytest.approx(reward)


def test_demonstrations_ask_as_the_agent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is a row's, the answer its letters backwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    row = import_object(f"{RECIPE}/spelling.py:row")("lamin")
    asked, answered = import_object(f"{RECIPE}/warm.py:demonstration")(row)["messages"]
    assert asked == {"role": "user", "content": "Write these letters backwards: l a m i n"}
    assert answered == {"role": "assistant", "content": "n i m a l"}


def test_the_agent_plays(tiny_model_folder: Path) -> None:
    """One word, one answer, its reward and whether it is right."""
    values: dict[str, Any] = {
        "model": {"path": str(tiny_model_folder), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 1},
    }
    row = import_object(f"{RECIPE}/spelling.py:held_out")()[0]
    (episode,) = ludus.play(f"{RECIPE}/agent.py:ReverseAgent", [row], config=ludus.Config(**values))
    assert episode.outcome.kind == "ok", episode.outcome
    assert set(episode.metrics) == {"success"}
