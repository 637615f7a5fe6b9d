"""The recipe of short answers: its judge reads the prompts that RULER writes, and prefers what it says it prefers."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.rewards import ruler

FOLDER = Path(__file__).parents[2] / "recipes" / "ruler"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The recipe's judge and its questions."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("judge"), importlib.import_module("animals")
    for name in ("judge", "animals"):
        sys.modules.pop(name, None)


def test_the_judge_compares_what_it_is_shown(recipe: tuple[Any, Any]) -> None:
    """Over HTTP, in RULER's own prompt: a short sentence about the animal is best."""
    judge, animals = recipe
    ask = {"role": "user", "content": animals.questions()[0]}
    answers = ["A fox is a small wild dog.", "A fox is " + "very " * 30 + "red.", "It is a dog", ""]
    with judge.serve() as url:
        lists = [[ask, {"role": "assistant", "content": text}] for text in answers]
        scores = asyncio.run(ruler(lists, "judge", {"api_base": url}, judge.RUBRIC))
    values = [score.score for score in scores]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 4


def test_the_score_that_counts_is_apart_from_the_judge(recipe: tuple[Any, Any]) -> None:
    """One short sentence that names the animal; and no question is both trained on and held out."""
    judge, animals = recipe
    question = animals.questions()[0]
    assert judge.is_good(question, "A fox is a small wild dog.")
    assert not judge.is_good(question, "A fox is small. It is red.")
    assert not judge.is_good(question, "It is a small wild dog.")
    assert not judge.is_good(question, "A fox is a small")
    assert len(animals.held_out()) == 8
    assert not set(animals.held_out()) & set(animals.training())
