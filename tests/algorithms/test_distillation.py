"""A teacher's advantages: against divergences differentiated by torch, beside the task's, bounded and weighed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ludus.algorithms import AlgorithmSettings, GroupReturns, algorithm_of
from ludus.algorithms.base import TokenAdvantages
from ludus.algorithms.distillation import distillation_advantages
from ludus.algorithms.explain import explain
from ludus.algorithms.measured import TokenNumbers
from ludus.types import Group

GROUP = Group("g0", "row0", ())
RETURNS = {"m0": {"a": 1.0, "b": None, "c": 1.0}, "m1": {"d": 0.0}}
GAPS = {"a": (0.5, -2.0), "d": (1.0,)}


def advantages(**settings: Any) -> Any:
    measured = {turn_id: TokenNumbers(teacher_gaps=gaps) for turn_id, gaps in GAPS.items()}
    algorithm = algorithm_of(AlgorithmSettings(**settings))
    (found,) = algorithm.advantages([GroupReturns(GROUP, RETURNS, measured=measured)])
    return {turn_id: each for turns in found.values() for turn_id, each in turns.items()}


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_the_advantages_are_the_gradient_of_their_divergence(divergence: Any) -> None:
    """Weighed by the policy's probabilities over a whole vocabulary they are minus what torch finds of the KL."""
    generator = torch.Generator().manual_seed(3)
    student_V = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    logprobs_V = student_V.log_softmax(0)
    ours_V = torch.tensor(
        distillation_advantages((teacher_V - logprobs_V).tolist(), divergence=divergence), dtype=torch.float64
    )
    (found,) = torch.autograd.grad((logprobs_V.detach().exp() * ours_V * logprobs_V).sum(), student_V)
    logprobs_V = student_V.log_softmax(0)
    one, other = (logprobs_V, teacher_V) if divergence == "reverse" else (teacher_V, logprobs_V)
    (expected,) = torch.autograd.grad((one.exp() * (one - other)).sum(), student_V)
    assert found.tolist() == pytest.approx((-expected).tolist(), abs=1e-9)


def test_each_token_has_its_own_number() -> None:
    """By hand: the gap itself, or T / S - 1, of which exp(20) is the most; a bound cuts both ways."""
    gaps = (0.0, 0.5, -2.0, 900.0)
    assert distillation_advantages(gaps) == gaps
    assert distillation_advantages(gaps[:3], divergence="forward") == pytest.approx((0.0, 0.6487213, -0.8646647))
    assert distillation_advantages(gaps, divergence="forward")[3] == pytest.approx(485165194.4)
    assert distillation_advantages(gaps, bound=1.0) == (0.0, 0.5, -1.0, 1.0)


def test_a_teacher_alone_leaves_rewards_out() -> None:
    """Turns without a return stay without credit; one of which no token can be trained has none of the teacher's."""
    found = advantages(name="distillation")
    assert found["a"] == TokenAdvantages((0.5, -2.0)) and found["d"] == TokenAdvantages((1.0,))
    assert found["b"] is None and found["c"] == 0.0


def test_a_teacher_is_added_to_the_task() -> None:
    """The group's advantages are 0.5 and -0.5; the teacher's count half."""
    found = advantages(advantage={"scale": "none"}, distillation={"weight": 0.5, "bound": 1.5})
    assert found["a"] == TokenAdvantages((0.75, -0.25)) and found["d"] == TokenAdvantages((0.0,))
    assert found["c"] == 0.5


def test_it_needs_a_teacher_and_no_other_member() -> None:
    """Alone it takes groups of one, and groups whose returns agree; nothing is asked of a trainer."""
    needs = algorithm_of(AlgorithmSettings(name="distillation")).needs
    assert needs.teacher and needs.flat_groups and needs.members == 1 and not needs.measured
    assert not algorithm_of(AlgorithmSettings()).needs.teacher


def test_it_is_explained() -> None:
    """With the weight and the bound, and which divergence falls."""

    def formula(**distillation: Any) -> str:
        settings = AlgorithmSettings(name="distillation", distillation=distillation)
        return next(term.formula for term in explain(settings, turn_discount=1.0) if term.name == "A")

    beside = "T: the teacher, S: the policy, both at temperature 1"
    assert formula() == f"0 + 1 (log T - log S), {beside}: KL(S || T) falls"
    bounded = formula(weight=0.25, divergence="forward", bound=5)
    assert bounded == f"0 + 0.25 (clip(T / S - 1, -5, 5)), {beside}: KL(T || S) falls"
