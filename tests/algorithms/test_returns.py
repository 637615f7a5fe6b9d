"""Returns and outcome rewards, against numbers worked out by hand."""

import pytest

from ludus.algorithms.returns import turn_returns
from ludus.errors import InternalError, UserError


def test_chain():
    """An outcome reward reaches every earlier turn, discounted once a turn."""
    follows = {"a": None, "b": "a", "c": "b"}
    assert turn_returns(follows, {"c": 1.0}) == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert turn_returns(follows, {"c": 1.0}, turn_discount=0.5) == {"a": 0.25, "b": 0.5, "c": 1.0}


def test_rewards_on_the_way():
    """A turn's own reward adds to what comes after it."""
    # c: 4; b: 2 + 0.5 * 4 = 4; a: 0.5 * 4 = 2
    assert turn_returns({"a": None, "b": "a", "c": "b"}, {"b": 2, "c": 4}, turn_discount=0.5) == {
        "a": 2,
        "b": 4,
        "c": 4,
    }


def test_branching():
    """Over branches the mean counts, each branch once whatever its size."""
    follows = {"root": None, "left": "root", "right": "root", "right_end": "right"}
    # left 0; right 0.5 + 0.5 * 2 = 1.5; root 1 + 0.5 * (0 + 1.5) / 2 = 1.375
    rewards = {"root": 1.0, "left": 0.0, "right": 0.5, "right_end": 2.0}
    assert turn_returns(follows, rewards, turn_discount=0.5) == {
        "root": 1.375,
        "left": 0.0,
        "right": 1.5,
        "right_end": 2.0,
    }


def test_branch_without_return():
    """A branch that no return reaches is None and has no part in the mean."""
    follows = {"root": None, "dead": "root", "dead_end": "dead", "alive": "root"}
    assert turn_returns(follows, {"alive": 3.0}) == {"root": 3.0, "dead": None, "dead_end": None, "alive": 3.0}


def test_zero_is_a_return():
    """A reward of 0 counts in the mean; the absence of a reward does not."""
    assert turn_returns({"a": None, "b": "a", "c": "a"}, {"b": 0, "c": 1})["a"] == 0.5
    assert turn_returns({"a": None, "b": "a", "c": "a"}, {"c": 1})["a"] == 1.0


def test_sub_agents():
    """A call's return is the mean over the sub-agents it started and its own next turn."""
    # main calls two sub-agents and goes on; search takes two turns, check one.
    follows = {"main": None, "search": "main", "check": "main", "search_2": "search", "main_2": "main"}
    rewards = {"search_2": 0.5, "check": 1.0, "main_2": 3.0}
    # search 0.9 * 0.5 = 0.45; main 0.9 * (0.45 + 1 + 3) / 3 = 1.335
    returns = turn_returns(follows, rewards, turn_discount=0.9)
    assert returns == {
        "main": pytest.approx(1.335),
        "search": pytest.approx(0.45),
        "check": 1.0,
        "search_2": 0.5,
        "main_2": 3.0,
    }


def test_order_of_the_result():
    """The result lists the turns in the order in which they came."""
    assert list(turn_returns({"a": None, "c": "a", "b": "a"}, {"c": 1})) == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({"x": 1.0}, "unknown turn 'x'"),
        ({"a": float("nan")}, "must be a finite number, got nan"),
        ({"a": float("inf")}, "must be a finite number, got inf"),
    ],
)
def test_bad_rewards(rewards, said):
    """A reward of an unknown turn, or one that is no finite number, is refused by name."""
    with pytest.raises(UserError, match=said):
        turn_returns({"a": None}, rewards)


def test_follows_a_later_turn():
    """Edges of credit lead back in time; a record where they do not is broken."""
    with pytest.raises(InternalError, match="'a' follows 'b'"):
        turn_returns({"a": "b", "b": None}, {})
    with pytest.raises(InternalError, match="'a' follows 'a'"):
        turn_returns({"a": "a"}, {})
