"""Weights of trained tokens, against numbers worked out by hand."""

import pytest

from ludus.algorithms.normalisers import constant_weights, episode_weights, token_weights


def test_token_mean():
    """`token`: every trained token of the batch weighs the same."""
    assert token_weights([2, 0, 6]) == (0.125, 0.0, 0.125)


def test_episode_mean():
    """`episode`: a mean over episodes of the mean over their tokens; one that trains nothing does not count."""
    assert episode_weights([2, 0, 5]) == (0.25, 0.0, 0.1)


def test_constant():
    """`constant`: one number for all lengths."""
    assert constant_weights([2, 0, 5], tokens=10) == (0.05, 0.0, 0.05)


@pytest.mark.parametrize("normaliser", [token_weights, episode_weights])
def test_weights_sum_to_one(normaliser):
    """All weights of all tokens add up to one."""
    counts = [3, 1, 4, 0, 5]
    assert sum(count * weight for count, weight in zip(counts, normaliser(counts), strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize("normaliser", [token_weights, episode_weights])
def test_nothing_trained(normaliser):
    """A batch without trained tokens divides by nothing."""
    assert normaliser([0, 0]) == (0.0, 0.0)
    assert normaliser([]) == ()
