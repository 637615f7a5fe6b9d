"""Group advantages, against numbers worked out by hand."""

import math
from typing import Any

import pytest

from ludus.algorithms.base import GroupReturns, Returns
from ludus.algorithms.estimators.group import group_advantages
from ludus.errors import UserError
from ludus.types import Group


def of_one(returns: Returns, **how: Any) -> Returns:
    (advantages,) = group_advantages([GroupReturns(Group("g0", "row0", ()), returns)], **how)
    return advantages


def test_outcome_rewards_give_grpo():
    """With one return per member this is GRPO: (r - mean) / (std + eps), std with ddof 1."""
    returns = {"a": {"a1": 1.0, "a2": 1.0}, "b": {"b1": 0.0}, "c": {"c1": 0.0}, "d": {"d1": 1.0}}
    # mean 0.5; variance 4 * 0.25 / 3 = 1/3
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert of_one(returns) == {
        "a": {"a1": pytest.approx(expected), "a2": pytest.approx(expected)},
        "b": {"b1": pytest.approx(-expected)},
        "c": {"c1": pytest.approx(-expected)},
        "d": {"d1": pytest.approx(expected)},
    }


def test_members_count_not_turns():
    """A member with many turns weighs as much in the baseline as one with a single turn."""
    returns = {"long": {"1": 1.0, "2": 2.0, "3": 3.0}, "short": {"4": 4.0}}
    # members' means 2 and 4, baseline 3 (over turns it would be 2.5)
    assert of_one(returns, scale="none") == {
        "long": {"1": -2.0, "2": -1.0, "3": 0.0},
        "short": {"4": 1.0},
    }


def test_spread_weighs_members_alike():
    """The variance is the mean over a member's turns, summed over members, over members less one."""
    returns = {"long": {"1": 1.0, "2": 3.0}, "short": {"4": 4.0}}
    # baseline 3; squares: long ((1 - 3)^2 + (3 - 3)^2) / 2 = 2, short (4 - 3)^2 = 1; variance 3 / (2 - 1)
    divisor = math.sqrt(3) + 1e-4
    advantages = of_one(returns)
    assert advantages["long"] == {"1": pytest.approx(-2 / divisor), "2": 0.0}
    assert advantages["short"] == {"4": pytest.approx(1 / divisor)}


def test_leave_one_out():
    """RLOO: each member is held against the mean of the others."""
    returns = {"a": {"1": 1.0}, "b": {"2": 0.0}, "c": {"3": 0.5}}
    assert of_one(returns, baseline="leave_one_out", scale="none") == {
        "a": {"1": 0.75},
        "b": {"2": -0.75},
        "c": {"3": 0.0},
    }


def test_no_baseline():
    """Without baseline and scale the advantage is the return itself, equal returns too."""
    returns = {"a": {"1": 2.0, "2": None}, "b": {"3": 2.0}}
    assert of_one(returns, baseline="none", scale="none") == returns


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e6])
@pytest.mark.parametrize("num_members", [1, 7])
def test_equal_returns_without_a_baseline(value, num_members):
    """Where returns agree there is no scale: the advantage is the return itself, not ten thousand times as much."""
    returns = {name: {f"{name}1": value, f"{name}2": value} for name in "abcdefg"[:num_members]}
    assert of_one(returns, baseline="none") == returns


def test_a_spread_of_rounding_is_none():
    """Returns that differ by their last bits alone are equal, with a baseline, and not blown up without."""
    returns = {"a": {"1": 0.1 + 0.2}, "b": {"2": 0.3}}
    assert of_one(returns, baseline="none") == returns
    assert of_one(returns) == {"a": {"1": 0.0}, "b": {"2": 0.0}}


def test_a_small_true_spread_divides():
    """Returns of one part in a million are still a signal."""
    advantages = of_one({"a": {"1": 1e-6}, "b": {"2": 0.0}}, eps=0.0)
    assert advantages["a"]["1"] == pytest.approx(math.sqrt(0.5))


def test_turns_without_return():
    """A turn without a return has no advantage and no say; nor has a member without any return."""
    returns = {"a": {"1": 1.0, "2": None}, "b": {"3": 0.0}, "silent": {"4": None}, "empty": {}}
    assert of_one(returns, scale="none") == {
        "a": {"1": 0.5, "2": None},
        "b": {"3": -0.5},
        "silent": {"4": None},
        "empty": {},
    }


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e300])
def test_equal_returns(baseline, value):
    """Equal returns give exactly zero, without a trace of rounding."""
    returns = {name: {f"{name}1": value, f"{name}2": value} for name in "abcdefg"}
    advantages = of_one(returns, baseline=baseline)
    assert {item for turns in advantages.values() for item in turns.values()} == {0.0}


def test_equal_members_with_unequal_turns():
    """Where members agree and their turns differ, advantages stay of the size of one."""
    returns = {"a": {"1": 1.0, "2": 0.0}, "b": {"3": 0.0, "4": 1.0}}
    # baseline 1/2; each member's mean square 1/4, variance 1/2
    expected = pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))
    advantages = of_one(returns)
    assert (advantages["a"]["1"], advantages["b"]["4"]) == (expected, expected)
    assert advantages["a"]["2"] == -advantages["a"]["1"]


def test_one_member():
    """A lone member is its own baseline; leave-one-out has none to offer."""
    alone = {"a": {"1": 1.0, "2": 0.0}}
    assert of_one(alone, scale="none") == {"a": {"1": 0.5, "2": -0.5}}
    with pytest.raises(UserError, match="at least two members"):
        of_one(alone, baseline="leave_one_out")


def test_nobody():
    """A group without returns, or without members, passes through."""
    assert of_one({}) == {}
    assert of_one({"a": {"1": None}}, baseline="leave_one_out") == {"a": {"1": None}}
