"""What algorithms compose to. The numbers on the right were worked out by hand from the formulas that are cited."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.base import Needs
from ludus.algorithms.corrections import truncate
from ludus.algorithms.metrics import kl_estimate
from ludus.algorithms.table import PRESETS


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([math.log(each) for each in probabilities], requires_grad=True)


def fixed(*values: float) -> Tensor:
    return torch.tensor(values)


def loss_of(
    logprobs: Tensor,
    sampled: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    reference: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """As the trainer computes it for one step on a batch: the proximal policy is the current one."""
    algorithm = algorithm_of(AlgorithmSettings(**settings))
    proximal = logprobs.detach() if algorithm.needs.proximal else None
    return algorithm.loss(LossInputs(logprobs, sampled, proximal, reference, advantages, weights))


def test_on_policy_loss_is_the_weighted_advantage() -> None:
    """With pi = mu every ratio is 1: the loss is -sum w A, and its gradient by a logprob is -w A."""
    logprobs = logs(0.5, 0.25)
    loss, metrics = loss_of(logprobs, logprobs.detach(), fixed(2.0, -1.0), fixed(0.5, 0.5), correction="bypass")
    loss.backward()
    assert loss.item() == pytest.approx(-0.5)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-1.0, 0.5])
    assert metrics["ratio_mean"] == 1 and metrics["clip_fraction"] == 0 and metrics["kl"] == 0


def test_ratio_is_clipped_on_the_side_that_gains() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages 1, -1, 1, -1: only the first and the last are clipped (1.2, -0.8)."""
    logprobs, old = logs(0.6, 0.6, 0.2, 0.2), logs(0.4, 0.4, 0.4, 0.4).detach()
    weights = fixed(0.25, 0.25, 0.25, 0.25)
    loss, metrics = loss_of(logprobs, old, fixed(1.0, -1.0, 1.0, -1.0), weights, correction="bypass")
    loss.backward()
    assert loss.item() == pytest.approx(-0.25 * (1.2 - 1.5 + 0.5 - 0.8))
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([0.0, 0.375, -0.125, 0.0])
    assert metrics["clip_fraction"].item() == pytest.approx(0.5)
    assert metrics["logprob_gap_mean"].item() == pytest.approx((math.log(1.5) + math.log(2)) / 2)
    assert metrics["logprob_gap_max"].item() == pytest.approx(math.log(2))


def test_clip_higher_leaves_more_room_upwards() -> None:
    """With clip_high = 0.6 a ratio of 1.5 is not clipped (DAPO)."""
    settings = {"correction": "bypass", "loss": {"clip_low": 0.2, "clip_high": 0.6}}
    loss, _ = loss_of(logs(0.6), logs(0.4).detach(), fixed(1.0), fixed(1.0), **settings)
    assert loss.item() == pytest.approx(-1.5)


def test_truncated_importance_weight_multiplies_the_loss() -> None:
    """prox / mu = 1.5 and 4, cap 2: the two losses count 1.5 and 2 times, and the weights carry no gradient."""
    logprobs, sampled = logs(0.6, 0.4), logs(0.4, 0.1).detach()
    loss, _ = loss_of(logprobs, sampled, fixed(1.0, 1.0), fixed(1.0, 1.0))
    loss.backward()
    assert loss.item() == pytest.approx(-3.5)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-1.5, -2.0])
    weights = truncate(LossInputs(logprobs, sampled, logprobs, None, sampled, sampled), cap=2.0).factor_N
    assert weights is not None and weights.tolist() == pytest.approx([1.5, 2.0]) and not weights.requires_grad


def test_kl_penalty_is_added_with_its_weight() -> None:
    """pi = 0.5, reference = 0.25: k3 = 0.5 - log 0.5 - 1 = 0.1931; its gradient by log pi is 1 - 0.5."""
    logprobs = logs(0.5)
    loss, metrics = loss_of(
        logprobs,
        logprobs.detach(),
        fixed(0.0),
        fixed(1.0),
        reference=logs(0.25).detach(),
        correction="bypass",
        kl={"beta": 0.1},
    )
    loss.backward()
    assert loss.item() == pytest.approx(0.1 * 0.19314718)
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(0.05)
    assert metrics["kl_reference"].item() == pytest.approx(0.19314718)


def test_kl_estimate_is_unbiased() -> None:
    """Averaged over pi = (0.2, 0.8) the estimate is KL(pi || q) of q = (0.5, 0.5) exactly: 0.19274."""
    estimates = kl_estimate(logs(0.2, 0.8), logs(0.5, 0.5))
    assert (torch.tensor([0.2, 0.8]) * estimates).sum().item() == pytest.approx(0.19274475)


def test_cross_entropy_is_the_weighted_negative_log_likelihood() -> None:
    """-(0.25 log 0.5 + 0.75 log 0.25) = 1.2130, and the unweighted mean is 1.0397."""
    logprobs = logs(0.5, 0.25)
    loss, metrics = loss_of(logprobs, fixed(0.0, 0.0), fixed(1.0, 1.0), fixed(0.25, 0.75), name="supervised")
    assert loss.item() == pytest.approx(1.21300757)
    assert metrics.keys() == {"nll"} and metrics["nll"].item() == pytest.approx(1.03972077)


def test_cispo_bounds_the_weight_of_a_token_and_leaves_none_out() -> None:
    """Ratios 1.5 and 8 with bound 5: the gradients by a logprob are -1.5 A and -5 A."""
    logprobs = logs(0.6, 0.8)
    loss, metrics = loss_of(logprobs, logs(0.4, 0.1).detach(), fixed(1.0, -2.0), fixed(1.0, 1.0), name="cispo")
    loss.backward()
    assert loss.item() == pytest.approx(-1.5 * math.log(0.6) + 2 * 5 * math.log(0.8))
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-1.5, 10.0])
    assert metrics["clip_fraction"].item() == 0.5 and metrics["ratio_mean"].item() == pytest.approx(4.75)


def test_cispo_at_one_step_is_the_truncated_ratio_to_the_bit() -> None:
    """One step on a batch: its gradient is that of the clipped loss whose importance weight has the same bound."""
    generator = torch.Generator().manual_seed(0)
    logprobs = (-5 * torch.rand(1000, generator=generator)).requires_grad_()
    sampled = logprobs.detach() + 0.7 * torch.randn(1000, generator=generator)
    rest = (torch.randn(1000, generator=generator), torch.rand(1000, generator=generator))
    gradients = [
        torch.autograd.grad(loss_of(logprobs, sampled, *rest, **settings)[0], logprobs)[0]
        for settings in ({"name": "cispo"}, {"correction": {"cap": 5.0}})
    ]
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, Needs(members=2, may_be_turns=True, proximal=True)),
        ({"name": "rloo", "kl": {"beta": 0.1}}, Needs(members=2, proximal=True, reference=True, flat_groups=True)),
        ({"name": "reinforce", "correction": "bypass"}, Needs()),
        (
            {"name": "cispo", "loss": {"kind": "own", "path": "a:b", "needs": ["reference"]}},
            Needs(2, True, reference=True),
        ),
    ],
)
def test_needs_are_those_of_all_parts(settings: dict[str, Any], needs: Needs) -> None:
    """Of estimator, loss, correction and KL term together."""
    assert algorithm_of(AlgorithmSettings(**settings)).needs == needs


def of_two_sequences(**settings: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Importance weights 2, 0.5, 8 and 1 of tokens of the episodes 0, 0, 1 and 1; the loss, and its gradient by pi."""
    logprobs = logs(0.4, 0.1, 0.8, 0.5)
    old = logs(0.2, 0.2, 0.1, 0.5).detach()
    ids = torch.tensor([0, 0, 1, 1])
    algorithm = algorithm_of(AlgorithmSettings(**settings))
    entropies = torch.tensor([0.1, 0.4, 0.2, 0.3], requires_grad=True)
    loss, seen = algorithm.loss(
        LossInputs(
            logprobs,
            old,
            logprobs.detach() if algorithm.needs.proximal else None,
            old,
            fixed(1.0, 1.0, 1.0, -1.0),
            torch.ones(4),
            entropies,
            ids,
            ids,
        )
    )
    slopes = torch.autograd.grad(loss, (logprobs, entropies), materialize_grads=True)
    return loss, seen, torch.stack(slopes)


@pytest.mark.parametrize(
    ("correction", "factors"),
    [
        ({"cap": 3.0}, [2, 0.5, 3, 1]),
        ({"cap": 3.0, "level": "episode"}, [1, 1, 3, 3]),
        ({"cap": 3.0, "level": "turn", "mean": "geometric"}, [1, 1, 8**0.5, 8**0.5]),
        ({"kind": "mask"}, [2, 0.5, 0, 1]),
        ({"kind": "mask", "weighs": False}, [1, 1, 0, 1]),
        ({"kind": "mask", "low": 0.99, "high": 2.0, "level": "episode"}, [1, 1, 0, 0]),
        ("none", [1, 1, 1, 1]),
    ],
)
def test_corrections_multiply_the_loss(correction: Any, factors: list[float]) -> None:
    """By token, turn and episode; products and geometric means; bounded, left out, or neither."""
    _, _, slopes = of_two_sequences(correction=correction)
    assert slopes[0].tolist() == pytest.approx([-c * a for c, a in zip(factors, [1, 1, 1, -1], strict=True)])


def test_terms_beside_the_loss() -> None:
    """An entropy bonus, KL estimates, tokens of high entropy alone, and sequences that the policy has left."""
    plain, seen, _ = of_two_sequences(correction="none")
    assert seen["ratio_mean"] == 1
    with_entropy, _, slopes = of_two_sequences(correction="none", entropy={"coef": 0.5})
    assert (with_entropy - plain).item() == pytest.approx(-0.5 * (0.1 + 0.4 + 0.2 + 0.3))
    assert slopes[1].tolist() == pytest.approx([-0.5] * 4)
    differences = [math.log(2), -math.log(2), math.log(8), 0.0]
    for estimator, terms in {
        "k1": differences,
        "k2": [d * d / 2 for d in differences],
        "k3": [math.exp(-d) + d - 1 for d in differences],
        "abs": list(map(abs, differences)),
    }.items():
        loss, seen, _ = of_two_sequences(correction="none", kl={"beta": 0.1, "estimator": estimator})
        assert (loss - plain).item() == pytest.approx(0.1 * sum(terms), abs=1e-6)
        assert seen["kl_reference"].item() == pytest.approx(sum(terms) / 4, abs=1e-6)
    _, _, slopes = of_two_sequences(correction="bypass", kl={"beta": 0.1, "estimator": "k1", "weighted": True})
    ratios, by_loss = [2.0, 0.5, 8.0, 1.0], [0.0, -0.5, 0.0, 1.0]
    expected = [s + 0.1 * r * (1 + d) for s, r, d in zip(by_loss, ratios, differences, strict=True)]
    assert slopes[0].tolist() == pytest.approx(expected, rel=1e-5)
    _, _, slopes = of_two_sequences(correction="none", top_entropy=0.5)
    assert slopes[0].tolist() == pytest.approx([0.0, -1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("normaliser", "share"),
    [("token", [0, 2, 0, 2]), ("episode", [0, 2, 0, 2]), ({"kind": "constant", "tokens": 9}, [0, 1, 0, 1])],
)
def test_the_bonus_is_of_the_tokens_that_are_trained(normaliser: Any, share: list[float]) -> None:
    """With `top_entropy` the entropy's mean is over the tokens of high entropy alone, as in TRL; it is shown too."""
    keys = {"correction": "none", "top_entropy": 0.5, "normaliser": normaliser}
    _, seen, slopes = of_two_sequences(**keys, entropy={"coef": 0.5})
    assert slopes[1].tolist() == pytest.approx([-0.5 * each for each in share])
    assert seen["top_entropy"].item() == pytest.approx(0.35)
    _, without, plain = of_two_sequences(**keys)
    assert "top_entropy" in without and plain[0].tolist() == slopes[0].tolist()


def test_tokens_of_high_entropy_of_a_large_minibatch() -> None:
    """Of more numbers than `Tensor.quantile` takes: those of the highest entropy, and all that have as much."""
    num = 2**24 + 2
    zeros, entropies = torch.zeros(num), torch.arange(num, dtype=torch.float32) % 4
    algorithm = algorithm_of(AlgorithmSettings(correction="none", loss="policy_gradient", top_entropy=0.2))
    logprobs = zeros.clone().requires_grad_()
    loss, _ = algorithm.loss(LossInputs(logprobs, zeros, zeros, None, torch.ones(num), torch.ones(num), entropies))
    (slopes,) = torch.autograd.grad(loss, logprobs)
    assert float(slopes.count_nonzero()) == (entropies == 3).sum()


def test_what_was_unlearned_already_is_left_out() -> None:
    """Of negative advantage and, on average over the sequence, log mu - log pi above the bound."""
    logprobs, old = logs(0.1, 0.2), logs(0.4, 0.4).detach()
    ids = torch.tensor([0, 0])
    for threshold, factor in ((1.0, 0.0), (1.1, 1.0)):  # (log 4 + log 2) / 2 = 1.04
        algorithm = algorithm_of(AlgorithmSettings(correction="none", off_policy_mask={"threshold": threshold}))
        inputs = LossInputs(logprobs, old, logprobs.detach(), None, fixed(-1.0, -1.0), torch.ones(2), old, ids, ids)
        (slopes,) = torch.autograd.grad(algorithm.loss(inputs)[0], logprobs)
        assert slopes.tolist() == pytest.approx([factor, factor])


def test_a_weighted_divergence_is_exact_for_tokens_of_another_policy() -> None:
    """Averaged over mu, pi / mu times the estimate has the value and the gradient of KL(pi || reference), whichever
    policy ratios are taken to."""
    mu, reference = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    scores = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    logprobs = scores.log_softmax(0)
    expected = (logprobs.exp() * (logprobs - reference.log())).sum()
    (slopes,) = torch.autograd.grad(expected, scores, retain_graph=True)
    for correction in ("bypass", "none"):
        settings = AlgorithmSettings(correction=correction, kl={"beta": 1.0, "weighted": True})
        algorithm = algorithm_of(settings)
        proximal = logprobs.detach() if algorithm.needs.proximal else None
        inputs = LossInputs(logprobs, mu.log(), proximal, reference.log(), torch.zeros(3), mu)
        loss, _ = algorithm.loss(inputs)
        (got,) = torch.autograd.grad(loss, scores, retain_graph=True)
        assert loss.item() == pytest.approx(expected.item()) and torch.allclose(got, slopes, atol=1e-6)


@pytest.mark.parametrize("name", sorted(name for name, keys in PRESETS.items() if "loss" in keys))
def test_the_loss_of_a_name_acts(name: str) -> None:
    """At the name's own settings, in the last of its minibatches, it moves the weights as GRPO's does not."""
    settings = AlgorithmSettings(name=name)
    logprobs, sampled = logs(0.375, 0.3, 0.9, 0.2), logs(0.1, 0.4, 0.3, 0.3).detach()
    first = logs(0.3, 0.35, 0.6, 0.22).detach() if settings.minibatches > 1 else logprobs.detach()
    ids, advantages = torch.tensor([0, 0, 1, 1]), fixed(4.0, 4.0, -2.0, -2.0)
    slopes = []
    for each in (settings, AlgorithmSettings()):
        proximal = first if algorithm_of(each).needs.proximal else None
        inputs = LossInputs(logprobs, sampled, proximal, sampled, advantages, torch.ones(4), sampled, ids, ids, ids * 0)
        slopes.append(torch.autograd.grad(algorithm_of(each).loss(inputs)[0], logprobs)[0])
    assert (slopes[0] - slopes[1]).abs().max() > 1e-3


def test_gmpo_clips_by_the_sequences_advantage() -> None:
    """A = 1, 1, -.2, -.2 has the mean .4: a rise of log r = 1 is clipped for all, and tokens of A = 0 count too."""
    old = torch.zeros(4)
    ids = torch.zeros(4, dtype=torch.int64)
    for advantages, moves in (((1.0, 1.0, -0.2, -0.2), [0, 1, 0, 1]), ((1.0, 1.0, 0.0, 0.0), [0, 1, 0, 1])):
        logprobs = torch.tensor([1.0, 0.0, 1.0, 0.0], requires_grad=True)
        algorithm = algorithm_of(AlgorithmSettings(loss="gmpo", correction="bypass"))
        loss, _ = algorithm.loss(
            LossInputs(logprobs, old, None, None, fixed(*advantages), torch.ones(4) / 4, old, ids, ids)
        )
        (slopes,) = torch.autograd.grad(loss, logprobs)
        mean = sum(advantages) / 4
        assert loss.item() == pytest.approx(-mean * math.exp(0.2))
        assert slopes.tolist() == pytest.approx([-mean * math.exp(0.2) / 4 * move for move in moves])


def test_a_lot_does_not_depend_on_where_tokens_lie() -> None:
    """Many tokens with equal logprobs: Clip-Cov draws the same, however the turns lie in the minibatch."""
    generator = torch.Generator().manual_seed(0)
    turns = torch.arange(40).repeat_interleave(5)
    logprobs = torch.where(torch.rand(200, generator=generator) < 0.5, 0.0, -1.0) - 0.5
    advantages = torch.randn(40, generator=generator).repeat_interleave(5)
    settings = AlgorithmSettings(loss={"kind": "clip_cov", "share": 0.05, "low": 0.0}, correction="bypass")
    made = []
    for order in (torch.arange(40), torch.randperm(40, generator=generator)):
        at = (order[:, None] * 5 + torch.arange(5)).flatten()
        leaf = logprobs[at].clone().requires_grad_()
        given = (logprobs[at], None, None, advantages[at], torch.ones(200), logprobs[at], turns[at], turns[at])
        (slopes,) = torch.autograd.grad(algorithm_of(settings).loss(LossInputs(leaf, *given))[0], leaf)
        made.append(slopes[at.argsort()])
    assert torch.equal(*made) and (made[0] == 0).sum() >= 10


ALL_MOVED = ((-1.0, 1.0, -1.0, 1.0), (-0.1, 0.5, -1.0, 0.2))
"""Advantages and log-ratios of tokens that have moved the way of their advantage: their squares are .01, .25, 1 and
.04, the means of these from the smallest on .01, .025, .1 and .325."""


@pytest.mark.parametrize(
    ("advantages", "log_ratios", "threshold", "kept"),
    [
        (*ALL_MOVED, 0.4, [1, 1, 1, 1]),
        (*ALL_MOVED, 0.2, [1, 1, 0, 1]),
        (*ALL_MOVED, 0.05, [1, 0, 0, 1]),
        (*ALL_MOVED, 0.001, [0, 0, 0, 0]),
        # what has moved against its advantage stays, and its square is in no mean
        ((1.0, 1.0), (-1.0, 0.1), 0.04, [1, 1]),
        ((1.0, -1.0, 0.0, -1.0), (1.0, 1.0, -3.0, -1.0), 0.04, [0, 1, 1, 0]),
        # of equal ones two would fit: with all of them the mean would be .072
        ((1.0,) * 10, (0.001,) * 2 + (0.3,) * 8, 0.04, [1, 1] + [0] * 8),
    ],
)
@pytest.mark.parametrize("correction", ["none", "bypass"])
def test_the_largest_second_moments_are_left_out(
    advantages: tuple[float, ...], log_ratios: tuple[float, ...], threshold: float, kept: list[int], correction: str
) -> None:
    """M2PO: of tokens that a clip would bound, until the mean of the others' is below the threshold; with `bypass` of
    pi and mu themselves."""
    sampled, ones = torch.full((len(kept),), -1.0), torch.ones(len(kept))
    logprobs = (sampled + torch.tensor(log_ratios)).requires_grad_()
    settings = AlgorithmSettings(loss="policy_gradient", correction=correction, second_moment=threshold)
    algorithm = algorithm_of(settings)
    assert algorithm.needs.minibatch
    proximal = logprobs.detach() if algorithm.needs.proximal else None
    terms = algorithm.terms(LossInputs(logprobs, sampled, proximal, None, fixed(*advantages), ones))
    assert terms.factor_N is not None and terms.factor_N.tolist() == kept
    (slopes,) = torch.autograd.grad(terms.loss_N.sum(), logprobs)
    assert slopes.tolist() == [-a * k for a, k in zip(advantages, kept, strict=True)]
