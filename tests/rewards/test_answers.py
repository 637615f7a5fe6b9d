"""Right and wrong answers of mathematics, and expressions that never end."""

from __future__ import annotations

import asyncio
import resource

import pytest

pytest.importorskip("math_verify")
pytest.importorskip("cloudpickle")

from ludus.errors import UserError
from ludus.rewards.answers import MathVerifier, load_check, math_verify_call

INFO = {"q1": {"solutions": ["\\boxed{4}"]}, "q2": {"solutions": ["\\frac{1}{2}", "x+1"]}}


def test_answers_by_query_and_by_themselves():
    """As the originals call it, and with a solution for each answer; forms of one number are one."""
    answers = ["It is \\boxed{4}.", "$0.5$", "$1+x$", "no idea"]
    assert math_verify_call(INFO, answers, ["q1", "q2", "q2@idx:3", "q1"]) == [1.0, 1.0, 1.0, 0.0]
    assert math_verify_call(answers[:2], ["... #### 4", ["3", "1/2"]], max_workers=1) == [1.0, 1.0]
    assert asyncio.run(_in_thread()) == [1.0]


async def _in_thread():
    return await asyncio.to_thread(math_verify_call, INFO, ["4"], ["q1"], max_workers=1)


def test_an_expression_without_end_is_wrong(caplog):
    """Its process is killed, the answer scores 0, and the next one is judged as ever."""
    with MathVerifier(1, timeout_s=2.0) as verifier:
        endless = "$9^{9^{9^{9^9}}}$ or $" + "(" * 20 + "1" + ")!" * 20 + "$"
        scores = [asyncio.run(verifier.verify(*each)) for each in [("4", ["4"]), (endless, ["5"]), ("5", ["5"])]]
        assert scores == [1.0, 0.0, 1.0]


def test_what_cannot_be_judged_is_named():
    """Unknown queries, and lists of unequal length."""
    with pytest.raises(UserError, match="no query 'q9'"):
        math_verify_call(INFO, ["4"], ["q9"])
    with pytest.raises(UserError, match="a query id for each"):
        math_verify_call(INFO, ["4", "5"], ["q1"])
    with pytest.raises(UserError, match="2 answers and solutions for 1"):
        math_verify_call(["4", "5"], ["4"])
    with pytest.raises(UserError, match="no solutions"):
        math_verify_call({"q": {"solutions": []}}, ["4"], ["q"])


def test_answers_are_judged_where_memory_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, which refuses any bound of address space."""

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert load_check()("It is \\boxed{4}.", ["4"])
