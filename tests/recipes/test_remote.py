"""The game of the remote recipe: what is held out, what guesses are worth, what the player hears."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "remote"


@pytest.fixture(scope="module")
def game() -> ModuleType:
    spec = importlib.util.spec_from_file_location("game", RECIPE / "game.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_held_out_games_are_never_trained(game: ModuleType) -> None:
    """A fifth of all pairs; every game can be won in three guesses by halving."""
    held_out, training = game.held_out(), game.training()
    assert len(held_out) + len(training) == len(game.all_games()) == 69
    assert not [each for each in held_out if each in training]
    for each in game.all_games():
        play = game.Play(each)
        for _ in range(game.GUESSES):
            play.answer(str((play.low + play.high) // 2))
            if play.found:
                break
        assert play.found or each["high"] - each["low"] > 6


@pytest.mark.parametrize(
    ("guesses", "heard", "reward"),
    [
        (["5"], ["lower"], 1.0),  # found, in the middle
        (["9", "5"], ["lower", "lower"], 0.5 + 0.5 * (0.5 + 0.5 + 0.5 * (1 - 1 / 7)) / 2),
        (["7", "8", "x"], ["lower", "lower", "Reply with one number."], 0.5 * (0.75 + 0.2 + 0.0) / 3),
        (["5 or so", " 5."], ["Reply with one number.", "lower"], 0.5 + 0.5 * (0.0 + 1.0) / 2),
    ],
)
def test_a_guess_is_worth_what_it_says(game: ModuleType, guesses: list[str], heard: list[str], reward: float) -> None:
    """A number, in agreement with what was heard, near to the middle; and half for finding it."""
    play = game.Play({"clue": "Guess.", "low": 1, "high": 9, "number": 5})
    assert [play.answer(each) for each in guesses] == heard
    assert play.reward == pytest.approx(reward)


def test_demonstrations_show_the_form_alone(game: ModuleType) -> None:
    """Their answers are numbers, and hardly better than chance."""
    shown = game.demonstrations(96)
    answers = [each["content"] for messages in shown for each in messages if each["role"] == "assistant"]
    assert all(game.read_number(answer) is not None for answer in answers)
    assert len(shown) == 96 and {messages[0]["content"] for messages in shown} == {game.RULES}
