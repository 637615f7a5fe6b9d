"""Verifiers by data source."""

from __future__ import annotations

import asyncio

import pytest

from ludus.compat.verl.data_sources import default_compute_score, last_boxed_only_string, remove_boxed, score_gsm8k
from ludus.errors import UserError


def score(solution: str, truth: str, source: str = "openai/gsm8k") -> float:
    return asyncio.run(default_compute_score(source, solution, truth, {}))


@pytest.mark.parametrize(
    ("solution", "truth", "expected"),
    [
        ("so it is\n#### 72", "72", 1.0),
        ("#### 1,072.", "1072", 1.0),
        ("#### $72.0", "72", 1.0),
        ("#### -3", "-3", 1.0),
        ("#### 71\nno:\n#### 72", "72", 1.0),
        ("#### 72\nno:\n#### 71", "72", 0.0),
        ("72", "72", 0.0),
        ("#### seventy-two", "72", 0.0),
        ("#### 1,,", "72", 0.0),
        ("#### 72", "worked out: 70 + 2\n#### 72", 1.0),
    ],
)
def test_gsm8k_counts_the_last_number_behind_its_mark(solution: str, truth: str, expected: float) -> None:
    assert score(solution, truth) == expected


def test_gsm8k_may_be_read_flexibly() -> None:
    """As verl's users call it: any last number, a smaller score for a number that is wrong."""
    assert score_gsm8k("It is 7, I think 72.", "72", method="flexible") == 1.0
    assert score_gsm8k("#### 71", "72", format_score=0.1) == 0.1
    assert score_gsm8k("nothing", "72", "flexible", 0.1) == 0.0
    with pytest.raises(UserError, match="method='loose'"):
        score_gsm8k("1", "1", method="loose")  # type: ignore[arg-type]


def test_mathematics_is_compared_by_value() -> None:
    """A wrong answer scores as in verl: -1 in its competitions' rows, 0 in others."""
    pytest.importorskip("math_verify")
    assert score("It is $\\boxed{\\frac{1}{2}}$", "0.5", "math_dapo") == 1.0
    assert score("It is $\\boxed{3}$", "0.5", "aime2024") == -1.0
    assert score("It is $\\boxed{3}$", "0.5", "HuggingFaceH4/MATH-500") == 0.0


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(UserError, match="'openai/gsm8'; did you mean 'openai/gsm8k'"):
        score("#### 1", "1", "openai/gsm8")


def test_a_row_without_a_solution_is_named() -> None:
    with pytest.raises(UserError, match="no reward_model"):
        asyncio.run(default_compute_score("openai/gsm8k", "#### 1", None))


@pytest.mark.parametrize(
    ("solution", "box", "inside"),
    [
        ("so $\\boxed{1}$, no, $\\boxed{\\frac{1}{2}}$.", "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("$\\boxed 7$ it is", "\\boxed 7", "7"),
    ],
)
def test_solutions_of_math_are_taken_out_of_their_box(solution: str, box: str, inside: str) -> None:
    """As verl's script for that data set does."""
    assert last_boxed_only_string(solution) == box and remove_boxed(box) == inside
    assert last_boxed_only_string("nothing") is None and last_boxed_only_string("\\fbox{2}") == "\\fbox{2}"
    with pytest.raises(UserError, match="must be"):
        remove_boxed("7")
