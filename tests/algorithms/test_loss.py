"""The numbers on the right were worked out by hand from the formulas that the functions cite."""

import math

import pytest
import torch
from torch import Tensor

from ludus.algorithms.correction import truncated_importance_weights
from ludus.algorithms.loss import cross_entropy, kl_estimate, policy_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([math.log(each) for each in probabilities], requires_grad=True)


def fixed(*values: float) -> Tensor:
    return torch.tensor(values)


def test_on_policy_loss_is_the_weighted_advantage() -> None:
    """With pi = mu every ratio is 1: the loss is -sum w A, and its gradient by a logprob is -w A."""
    logprobs = logs(0.5, 0.25)
    loss, metrics = policy_loss(
        logprobs, logprobs.detach(), None, fixed(2.0, -1.0), fixed(0.5, 0.5), **CLIP, tis_cap=None
    )
    loss.backward()
    assert loss.item() == pytest.approx(-0.5)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-1.0, 0.5])
    assert metrics["ratio_mean"] == 1 and metrics["clip_fraction"] == 0 and metrics["kl"] == 0


def test_ratio_is_clipped_on_the_side_that_gains() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages 1, -1, 1, -1: only the first and the last are clipped (1.2, -0.8)."""
    logprobs, old = logs(0.6, 0.6, 0.2, 0.2), logs(0.4, 0.4, 0.4, 0.4).detach()
    loss, metrics = policy_loss(
        logprobs, old, None, fixed(1.0, -1.0, 1.0, -1.0), fixed(0.25, 0.25, 0.25, 0.25), **CLIP, tis_cap=None
    )
    loss.backward()
    assert loss.item() == pytest.approx(-0.25 * (1.2 - 1.5 + 0.5 - 0.8))
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([0.0, 0.375, -0.125, 0.0])
    assert metrics["clip_fraction"].item() == pytest.approx(0.5)
    assert metrics["logprob_gap_mean"].item() == pytest.approx((math.log(1.5) + math.log(2)) / 2)
    assert metrics["logprob_gap_max"].item() == pytest.approx(math.log(2))


def test_clip_higher_leaves_more_room_upwards() -> None:
    """With clip_high = 0.6 a ratio of 1.5 is not clipped (DAPO)."""
    loss, _ = policy_loss(
        logs(0.6), logs(0.4).detach(), None, fixed(1.0), fixed(1.0), clip_low=0.2, clip_high=0.6, tis_cap=None
    )
    assert loss.item() == pytest.approx(-1.5)


def test_truncated_importance_weight_multiplies_the_loss() -> None:
    """prox / mu = 1.5 and 4, cap 2: the two losses count 1.5 and 2 times, and the weights carry no gradient."""
    logprobs = logs(0.6, 0.4)
    loss, _ = policy_loss(
        logprobs,
        logs(0.4, 0.1).detach(),
        logprobs.detach(),
        fixed(1.0, 1.0),
        fixed(1.0, 1.0),
        **CLIP,
        tis_cap=2.0,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-3.5)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-1.5, -2.0])
    weights = truncated_importance_weights(logprobs, logs(0.4, 0.1).detach(), cap=2.0)
    assert weights.tolist() == pytest.approx([1.5, 2.0]) and not weights.requires_grad


def test_kl_penalty_is_added_with_its_weight() -> None:
    """pi = 0.5, reference = 0.25: k3 = 0.5 - log 0.5 - 1 = 0.1931; its gradient by log pi is 1 - 0.5."""
    logprobs = logs(0.5)
    loss, metrics = policy_loss(
        logprobs,
        logprobs.detach(),
        None,
        fixed(0.0),
        fixed(1.0),
        **CLIP,
        tis_cap=None,
        kl=(logs(0.25).detach(), 0.1),
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
    loss, metrics = cross_entropy(logs(0.5, 0.25), fixed(0.25, 0.75))
    assert loss.item() == pytest.approx(1.21300757)
    assert metrics["nll"].item() == pytest.approx(1.03972077)
