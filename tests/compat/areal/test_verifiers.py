"""Verifiers: right answers in the forms that models write them, and wrong ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ludus.compat.areal.verifiers import (
    VERIFIERS,
    clevr_count_70k_reward_fn,
    final_number,
    geometry3k_reward_fn,
    get_custom_reward_fn,
    gsm8k_reward_fn,
)
from ludus.errors import UserError
from ludus.rewards.answers import last_boxed


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42.", 42),
        ("3 + 4 = 7\n#### 7", 7),
        ("#### 1,234,567", 1234567),
        (r"so \boxed{18}, not 20", 18),
        ("$18.50 in all", Fraction(37, 2)),
        ("it falls to -3", -3),
        ("it falls to −3", -3),
        ("3/4 of them", Fraction(3, 4)),
        ("50% more than 1.0", 1),
        ("version v2 has none after it", None),
        ("no number", None),
        ("1/0", None),
    ],
)
def test_the_final_number(text: str, number: Any) -> None:
    """The boxed one, else the one after ####, else the last."""
    assert final_number(text) == number


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{never closed", "1"),
        ("none", None),
    ],
)
def test_the_last_boxed_expression(text: str, boxed: str | None) -> None:
    """Braces inside belong to it; one that is cut off does not count."""
    assert last_boxed(text) == boxed


def test_gsm8k_compares_numbers() -> None:
    """A worked solution against a worked answer."""
    solution = "Natalia sold 48/2 = <<48/2=24>>24 clips.\n#### 72"
    assert gsm8k_reward_fn("", "She sold 72.00 clips.", [], [], answer=solution, question="?") == 1.0
    assert gsm8k_reward_fn("", "She sold 24 clips.", [], [], answer=solution) == 0.0
    assert gsm8k_reward_fn("", "I do not know.", [], [], answer=solution) == 0.0
    with pytest.raises(UserError, match="`answer` holds no number"):
        gsm8k_reward_fn("", "72", [], [], answer="none")


def test_geometry3k_compares_expressions() -> None:
    """Numbers by value, the rest letter by letter without what only changes its looks."""
    for found, wanted in (
        (r"\boxed{5.0}", "5"),
        (r"\boxed{ 2 \sqrt{3} }", r"2\sqrt{3}"),
        (r"\boxed{\dfrac{1}{2}}", "0.5"),
    ):
        assert geometry3k_reward_fn("", found, [], [], answer=wanted) == 1.0
    assert geometry3k_reward_fn("", r"\boxed{6}", [], [], answer="5") == 0.0
    assert geometry3k_reward_fn("", "5", [], [], answer="5") == 0.0


def test_clevr_counts_in_brackets() -> None:
    """The last bracket counts."""
    assert clevr_count_70k_reward_fn("", "[2], no: [3]", [], [], answer="[3]") == 1.0
    assert clevr_count_70k_reward_fn("", "3", [], [], answer="3") == 0.0


def test_a_verifier_is_found_by_the_data_sets_name() -> None:
    """Whatever the path around it; an unknown one is told what there is."""
    assert get_custom_reward_fn("openai/gsm8k") is gsm8k_reward_fn
    assert get_custom_reward_fn("hiyouga/geometry3k", split="train") is geometry3k_reward_fn
    with pytest.raises(UserError, match="there are " + ", ".join(VERIFIERS)):
        get_custom_reward_fn("my/data")
