"""The recipe of sums: its problems, its reward, and its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.import_strings import import_object

RECIPE = Path(__file__).parents[2] / "recipes" / "sums"


def test_problems_are_held_out() -> None:
    """Of 2,500 pairs a tenth is never trained, and every answer is the sum."""
    held_out, training = (import_object(f"{RECIPE}/problems.py:{name}")() for name in ("held_out", "training"))
    assert (len(held_out), len(training)) == (250, 2250)
    assert len({row["question"] for row in (*held_out, *training)}) == 2500
    a, b = training[0]["question"].removeprefix("What is ").split("?")[0].split("+")
    assert int(a) + int(b) == training[0]["answer"]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [("12", 1.0), ("5 + 7 = 12.", 1.0), ("12, or 13", 0.0), ("112", 0.0), ("twelve", 0.0), (None, 0)],
)
def test_rewards(reply: str | None, reward: float) -> None:
    """The last number counts, whole."""
    assert import_object(f"{RECIPE}/agent.py:score")(reply, 12) == reward


def test_the_agent_plays(tiny_model_folder: Path) -> None:
    """One question, one answer, its reward and whether it is right."""
    values: dict[str, Any] = {
        "model": {"path": str(tiny_model_folder), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 1},
    }
    row = import_object(f"{RECIPE}/problems.py:held_out")()[0]
    (episode,) = ludus.play(f"{RECIPE}/agent.py:SumAgent", [row], config=ludus.Config(**values))
    assert episode.outcome.kind == "ok", episode.outcome
    assert set(episode.metrics) == {"success"}
