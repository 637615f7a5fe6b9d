"""The guessing game: what a guess is worth, and what a game is worth when only its outcome counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ludus
from ludus.import_strings import import_object

RECIPE = Path(__file__).parents[2] / "recipes" / "guess"
GAME = {"clue": "Guess.", "low": 1, "high": 20, "number": 5}


class Replies:
    """As much of `openai.AsyncOpenAI` as the agent uses: these replies, one after the other."""

    def __init__(self, *replies: str) -> None:
        self.left: Iterator[tuple[int, str]] = iter(enumerate(replies))
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **_: Any) -> Any:
        number, reply = next(self.left)
        message = SimpleNamespace(content=reply)
        return SimpleNamespace(id=str(number), choices=[SimpleNamespace(message=message, finish_reason="stop")])


def play(agent: str, *replies: str) -> Any:
    return asyncio.run(import_object(f"{RECIPE}/agent.py:{agent}")().play(Replies(*replies), GAME))


def test_each_guess_is_paid() -> None:
    """10 halves what is left as well as can be; 12 disagrees with "lower"; 5 is the middle of 1 to 9, and right."""
    rewards, metrics = play("GuessAgent", "10", "12", "5")
    assert rewards == pytest.approx({"0": 1.0, "1": 0.2, "2": 1.2}) and metrics == {"success": 1.0}


@pytest.mark.parametrize(("replies", "reward"), [(("10", "5"), 1.0), (("20", "19", "18", "17", "five"), 0.0)])
def test_the_outcome_alone(replies: tuple[str, ...], reward: float) -> None:
    """1 for a number that was found within five guesses, else 0."""
    assert play("OutcomeAgent", *replies) == (reward, {"success": reward})


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus", "gspo", "cispo", "ppo", "dpo"])
def test_every_algorithm_takes_the_recipe(name: str) -> None:
    """The settings of the recipe and of the preset go together, and the games are the same."""
    config = ludus.load_config(RECIPE / "run.yaml", [f"algorithm.name={name}"])
    assert (config.train_dataset.batch_size, config.gconfig.n_samples) == (12, 4)
    assert config.algorithm.name == name
