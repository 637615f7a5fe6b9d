"""Where the proximal policy's logprobs come from; the numbers were worked out by hand, or are AReaL's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.proximal import Proximal, proximal_logprobs
from ludus.errors import InternalError
from ludus.settings import idle_keys


def inputs(sampled: list[float], current: list[float], ages: list[int] | None) -> LossInputs:
    """Tokens of advantage 1 and weight 1."""
    ones = torch.ones(len(sampled))
    return LossInputs(
        torch.tensor(current, requires_grad=True),
        torch.tensor(sampled),
        None,
        None,
        ones,
        ones,
        ages_N=None if ages is None else torch.tensor(ages),
    )


def test_the_interpolation_is_areals() -> None:
    """Numbers of AReaL's tests/test_prox_approx.py: two, four and one versions old, and sampled with these weights."""
    given = inputs([-1.0, -1.0, -2.0, -1.0, -1.0], [-1.5, -1.5, -2.2, -2.0, -3.0], [2, 4, 2, 1, 0])
    found = proximal_logprobs(given, "interpolate")
    assert found is not None and not found.requires_grad
    assert found.tolist() == pytest.approx([-1.25, -1.375, -2.1, -1.0, -1.0])


def test_the_loss_is_of_the_policy_between() -> None:
    """mu = e^-1, pi = e^-1.5, two versions old: prox = e^-1.25, so r = c = e^-0.25 = 0.7788, and -r c A = -e^-0.5. The
    bound 1 - 0.2 does not act where A > 0. Its gradient is -c r."""
    given = inputs([-1.0], [-1.5], [2])
    algorithm = algorithm_of(AlgorithmSettings(proximal="interpolate", minibatches=4))
    assert algorithm.needs.ages and not algorithm.needs.proximal
    loss, seen = algorithm.loss(given)
    loss.backward()
    assert loss.item() == pytest.approx(-math.exp(-0.5))
    assert given.logprobs_N.grad is not None and given.logprobs_N.grad.item() == pytest.approx(-math.exp(-0.5))
    assert seen["ratio_mean"].item() == pytest.approx(math.exp(-0.25))


def test_what_is_reused_has_the_ratio_one() -> None:
    """prox = pi: r = 1, and the weight is pi / mu = e^0.5, or 2 where it would be e^1."""
    given = inputs([-1.5, -2.0], [-1.0, -1.0], None)
    algorithm = algorithm_of(AlgorithmSettings(proximal="reuse", minibatches=4))
    assert not algorithm.needs.ages and not algorithm.needs.proximal
    terms = algorithm.terms(given)
    assert terms.ratio_N.tolist() == [1.0, 1.0]
    assert terms.loss_N.tolist() == pytest.approx([-math.exp(0.5), -2.0])


@pytest.mark.parametrize("proximal", ["reuse", "interpolate"])
def test_the_gap_shown_is_the_computed_policys(proximal: Proximal) -> None:
    """mu = e^-1, pi = e^-1.5: .5, wherever the proximal policy is put between them."""
    shown = algorithm_of(AlgorithmSettings(proximal=proximal)).terms(inputs([-1.0], [-1.5], [0])).shown
    assert shown["logprob_gap_mean"] == shown["logprob_gap_max"] == 0.5


def test_ages_must_be_there() -> None:
    """Without them nobody knows where between two policies it lies."""
    with pytest.raises(InternalError, match="ages of tokens"):
        proximal_logprobs(inputs([-1.0], [-1.0], None), "interpolate")


@pytest.mark.parametrize(
    ("proximal", "minibatches", "loss", "correction", "idle"),
    [
        ("recompute", 1, {"clip_high": 0.3}, "truncate", ["loss.clip_high"]),
        ("recompute", 4, {"clip_high": 0.3}, "truncate", []),
        ("reuse", 4, {"clip_high": 0.3}, "truncate", ["loss.clip_high"]),
        ("interpolate", 1, {"clip_high": 0.3}, "truncate", []),
        ("interpolate", 1, {}, "bypass", ["proximal"]),
        # the level acts: GMPO's advantage is a mean over it
        ("recompute", 1, {"kind": "gmpo", "level": "turn", "clip_low": 0.3}, "truncate", ["loss.clip_low"]),
    ],
)
def test_keys_that_do_not_act_are_named(
    proximal: Proximal, minibatches: int, loss: dict[str, Any], correction: str, idle: list[str]
) -> None:
    """A bound of a ratio that is 1, and the proximal policy of nobody."""
    settings = AlgorithmSettings(proximal=proximal, minibatches=minibatches, loss=loss, correction=correction)
    assert [each.key for each in idle_keys(settings)] == idle
