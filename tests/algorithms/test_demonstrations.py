"""What experts gave has a loss of its own, whatever the loss of the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ludus.algorithms.base import LossInputs
from ludus.algorithms.demonstrations import demonstration_loss
from ludus.algorithms.pack import DEMONSTRATED, OWN
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings

LOGPROBS = (-0.5, -0.3, -0.4, -0.2, -0.6, -0.3)


def inputs_of(logprobs: torch.Tensor, origins: torch.Tensor | None, advantage: float = 1.0) -> LossInputs:
    """Of equal weights, recorded as experts' tokens are: with the logprob of what is certain."""
    num = len(logprobs)
    advantages, ids = torch.full((num,), advantage), torch.arange(num)
    fixed = logprobs.detach(), torch.zeros(num)
    return LossInputs(
        logprobs, fixed[1], fixed[0], None, advantages, torch.full((num,), 1 / num), fixed[1], ids, ids, ids, origins
    )


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, -0.87130), (0.5, -0.57652)])
def test_the_loss_is_luffys(gamma: float, expected: float) -> None:
    """The mean of -p / (p + gamma) over six tokens, and its slope by hand: -gamma p / (p + gamma)^2 / 6."""
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    loss = demonstration_loss(inputs_of(logprobs, None), gamma=gamma).mean()
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    (slopes,) = torch.autograd.grad(loss, logprobs)
    p = torch.tensor(LOGPROBS).exp()
    torch.testing.assert_close(slopes, -gamma * p / (p + gamma) ** 2 / 6)


@pytest.mark.parametrize("loss", ["clip", "cispo", "gmpo", "policy_gradient", {"kind": "clip", "level": "episode"}])
def test_beside_any_loss_experts_tokens_have_their_own(loss: object) -> None:
    """The slopes of half of the tokens are LUFFY's, those of the other half as if nothing else were there; corrections
    and distances are of the policy's own tokens."""
    algorithm = algorithm_of(AlgorithmSettings(loss=loss, demonstrations={"gamma": 0.5}))
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    origins = torch.tensor([OWN, DEMONSTRATED] * 3)
    mixed, seen = algorithm.loss(inputs_of(logprobs, origins))
    alone, _ = algorithm.loss(inputs_of(logprobs, None))
    (of_mixed,), (of_alone,) = (torch.autograd.grad(each, logprobs) for each in (mixed, alone))
    p = torch.tensor(LOGPROBS).exp()
    torch.testing.assert_close(of_mixed[1::2], (-0.5 * p / (p + 0.5) ** 2 / 6)[1::2])
    torch.testing.assert_close(of_mixed[::2], of_alone[::2])
    assert seen["demonstration_share"] == 0.5
    assert seen["demonstration_probability"] == pytest.approx(float(p[1::2].sum()) / 6)
    assert seen["logprob_gap_max"] == pytest.approx(0.6), "of an own token that was recorded as certain"


@pytest.mark.parametrize(
    "settings",
    [
        *({"name": name, "correction": "bypass"} for name in ("cispo", "dppo", "vespo", "opo", "gpg")),
        {"proximal": "interpolate"},
        {"proximal": "reuse"},
    ],
)
def test_experts_are_no_distance_away_without_a_proximal_policy_too(settings: dict[str, str]) -> None:
    """Nobody sampled them, a version ago or ever: what is recorded of them, 0, is no logprob that anything may be
    compared with, neither in what is shown nor in a KL term that is weighed by the ratio."""
    algorithm = algorithm_of(AlgorithmSettings(**settings, kl={"beta": 0.1, "weighted": True}))
    logprobs = torch.tensor([-5.0, -0.3], requires_grad=True)
    own = torch.tensor([OWN, OWN]), torch.tensor([-5.0, -0.3])
    given = replace(inputs_of(logprobs, torch.tensor([DEMONSTRATED, OWN])), ages_N=torch.tensor([1, 0]))
    sampled = torch.tensor([0.0, -0.3])  # of the policy's own token what it is now
    reference = torch.tensor([-4.0, -0.3])
    with_experts = replace(given, sampled_logprobs_N=sampled, proximal_logprobs_N=None, reference_logprobs_N=reference)
    alone = replace(with_experts, origins_N=own[0], sampled_logprobs_N=own[1])
    terms, plain = algorithm.terms(with_experts), algorithm.terms(alone)
    assert terms.shown["logprob_gap_max"] == 0.0 and terms.ratio_N.tolist() == [1.0, 1.0]
    assert terms.metrics["kl_reference"].tolist() == plain.metrics["kl_reference"].tolist()
    p = float(torch.tensor(-5.0).exp())
    kl_of_it = math.exp(1.0) - 1.0 - 1.0
    assert float(terms.loss_N[0].detach()) == pytest.approx((-p / (p + 0.1) + 0.1 * kl_of_it) / 2, rel=1e-4)
