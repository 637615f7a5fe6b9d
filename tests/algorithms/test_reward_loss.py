"""The loss of reward models by its formula."""

import math

import pytest
import torch

from ludus.algorithms.reward_loss import reward_loss


def test_bradley_terry_with_margin_and_centering() -> None:
    """The mean of -log sigmoid(w - l - margin) + c (w + l)^2."""
    pairs = [(1.0, 0.5, 0.0), (-0.5, 0.25, 1.0)]
    expected = [math.log1p(math.exp(-(good - bad - margin))) + 0.1 * (good + bad) ** 2 for good, bad, margin in pairs]
    chosen, rejected, margins = (torch.tensor(each) for each in zip(*pairs, strict=True))
    loss, seen = reward_loss(chosen, rejected, margins, center_coefficient=0.1)
    assert float(loss) == pytest.approx(sum(expected) / 2)
    assert (float(seen["accuracy"]), float(seen["margin"])) == (0.5, pytest.approx(-0.125))
    plain, _ = reward_loss(chosen, rejected, margins * 0, center_coefficient=None)
    assert float(plain) == pytest.approx(sum(math.log1p(math.exp(bad - good)) for good, bad, _ in pairs) / 2)
