"""Weights of trained tokens, against numbers worked out by hand."""

import pytest

from ludus.algorithms.weights import episode_weights
from ludus.errors import UserError


def test_token_mean():
    """`token`: every trained token of the batch weighs the same."""
    assert episode_weights([2, 0, 6], normaliser="token", constant_tokens=None) == (0.125, 0.0, 0.125)


def test_episode_mean():
    """`episode`: a mean over episodes of the mean over their tokens; one that trains nothing does not count."""
    assert episode_weights([2, 0, 5], normaliser="episode") == (0.25, 0.0, 0.1)


def test_constant():
    """`constant`: one number for all lengths."""
    assert episode_weights([2, 0, 5], normaliser="constant", constant_tokens=10) == (0.05, 0.0, 0.05)


@pytest.mark.parametrize("normaliser", ["token", "episode"])
def test_weights_sum_to_one(normaliser):
    """All weights of all tokens add up to one."""
    counts = [3, 1, 4, 0, 5]
    weights = episode_weights(counts, normaliser=normaliser)
    assert sum(count * weight for count, weight in zip(counts, weights, strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize("normaliser", ["token", "episode"])
def test_nothing_trained(normaliser):
    """A batch without trained tokens divides by nothing."""
    assert episode_weights([0, 0], normaliser=normaliser) == (0.0, 0.0)
    assert episode_weights([], normaliser=normaliser) == ()


@pytest.mark.parametrize("constant_tokens", [None, 0, -4])
def test_constant_without_constant(constant_tokens):
    """`constant` without a positive number says what it needs."""
    with pytest.raises(UserError, match="constant_tokens >= 1"):
        episode_weights([1], normaliser="constant", constant_tokens=constant_tokens)
