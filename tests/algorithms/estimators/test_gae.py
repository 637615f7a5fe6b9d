"""Generalised advantage estimation: on chains as verl and AReaL have it, on trees by hand, and its laws."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ludus.algorithms.base import GroupReturns, TokenAdvantages
from ludus.algorithms.estimators.gae import gae_advantages
from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.returns import turn_returns
from ludus.types import Episode, Group, Message, Outcome, Sampled, Sampling, SessionRecord, Turn

PLAIN: dict[str, Any] = {"lam": 1.0, "gamma": 1.0, "unit": "token", "whiten": False}


def turn(name: str, follows: str | None) -> Turn:
    sampled = Sampled((1,), (-1.0,), (0,), "stop")
    return Turn(name, 0, None, follows, None, (), Message("assistant", ""), sampled, Sampling())


def group_of(
    follows: Mapping[str, str | None],
    rewards: Mapping[str, float],
    values: Mapping[str, Sequence[float]],
    *,
    discount: float = 1.0,
    has_returns: bool = False,
) -> GroupReturns:
    """One episode; turns without values are masked."""
    record = SessionRecord("e", (), tuple(turn(name, before) for name, before in follows.items()))
    episode = Episode("e", "row", "g", record, dict(rewards), Outcome("ok"), has_returns=has_returns)
    edges = dict.fromkeys(follows) if has_returns else follows
    returns = {"e": turn_returns(edges, rewards, turn_discount=discount)}
    measured = {name: TokenNumbers(values=tuple(each)) for name, each in values.items()}
    return GroupReturns(Group("g", "row", (episode,)), returns, discount, measured)


def credit_of(group: GroupReturns, **how: Any) -> Mapping[str, Any]:
    (advantages,) = gae_advantages([group], **{**PLAIN, **how})
    return advantages["e"]


def test_a_chain_is_the_recurrence_over_its_tokens() -> None:
    """Rewards 0, .5 and 2, values .1, .2, .4 in two turns, gamma .9, lam .8: as AReaL's and verl's recurrence over the
    tokens that are not masked (AReaL's test_token_level_gae_matches_legacy_recurrence has these numbers)."""
    group = group_of({"a": None, "b": "a"}, {"a": 0.5, "b": 2.0}, {"a": (0.1, 0.2), "b": (0.4,)}, discount=0.9)
    credit = credit_of(group, lam=0.8, gamma=0.9)
    last = 2.0 - 0.4
    middle = 0.5 + 0.9 * 0.4 - 0.2 + 0.9 * 0.8 * last
    first = 0.9 * 0.2 - 0.1 + 0.9 * 0.8 * middle
    assert credit["b"].advantages == pytest.approx((last,))
    assert credit["a"].advantages == pytest.approx((first, middle))
    assert credit["a"].value_targets == pytest.approx((first + 0.1, middle + 0.2))


def test_turns_as_steps_are_areals() -> None:
    """Its test_turn_level_gae_skips_gaps_and_uses_first_value_with_bootstrap: the bootstrapped value is a reward."""
    rewards = {"a": 3.0, "b": 4.0 + 0.5 * 8.0}
    group = group_of({"a": None, "b": "a"}, rewards, {"a": (1.0, 5.0), "b": (2.0, 8.0)}, discount=0.5)
    credit = credit_of(group, lam=0.25, unit="turn")
    assert credit["a"].advantages == (3.75, 3.75) and credit["b"].advantages == (6.0, 6.0)
    assert credit["a"].value_targets == (4.75, 4.75) and credit["b"].value_targets == (8.0, 8.0)


def test_a_forked_tree_counts_the_mean_over_followers() -> None:
    """plan -> two workers, one of which goes on; by hand, lam = .5, turn discount .5."""
    follows = {"plan": None, "left": "plan", "right": "plan", "more": "right"}
    values = {"plan": (0.0, 1.0), "left": (2.0,), "right": (3.0, 1.0), "more": (4.0,)}
    credit = credit_of(group_of(follows, {"left": 1.0, "more": 8.0}, values, discount=0.5), lam=0.5)
    assert credit["more"].advantages == (4.0,)  # 8 - 4
    assert credit["left"].advantages == (-1.0,)  # 1 - 2
    # the last token: .5 * 4 - 1 + .25 * 4 = 2; the first: 1 - 3 + .5 * 2 = -1
    assert credit["right"].advantages == (-1.0, 2.0)
    # .5 * mean(2, 3) - 1 + .25 * mean(-1, -1) = 0; 1 - 0 + .5 * 0 = 1
    assert credit["plan"].advantages == (1.0, 0.0)
    assert credit["plan"].value_targets == (1.0, 1.0)


def test_what_cannot_be_trained_is_passed_over() -> None:
    """A masked turn's value and advantage are those of what follows it, not shrunk by lam; its reward counts."""
    follows = {"a": None, "b": "a", "c": "b"}
    group = group_of(follows, {"b": 0.25, "c": 1.0}, {"a": (0.5,), "c": (0.7,)})
    credit = credit_of(group, lam=0.5)
    assert credit["c"].advantages == pytest.approx((0.3,))
    assert credit["a"].advantages == pytest.approx((0.25 + 0.7 - 0.5 + 0.5 * 0.3,))
    assert credit["b"] == 0.0  # masked by its own reason, which the export knows
    unreached = group_of({"a": None, "b": "a"}, {"a": 1.0}, {"a": (0.5,)})
    assert credit_of(unreached)["a"].advantages == (0.5,) and credit_of(unreached)["b"] is None


def test_returns_of_the_agent_are_passed_on_to_nobody() -> None:
    """An agent that computed returns itself: each turn is compared with its own."""
    group = group_of({"a": None, "b": "a"}, {"a": 2.0, "b": 1.0}, {"a": (0.5,), "b": (0.25,)}, has_returns=True)
    credit = credit_of(group, lam=0.3)
    assert credit["a"].advantages == (1.5,) and credit["b"].advantages == (0.75,)


def random_group(rng: random.Random) -> GroupReturns:
    names = [f"t{number}" for number in range(rng.randint(1, 7))]
    follows = {name: rng.choice([None, *names[:at]]) for at, name in enumerate(names)}
    rewards = {name: rng.uniform(-1, 1) for name in names if rng.random() < 0.6}
    reached = turn_returns(follows, rewards, turn_discount=0.9)
    values = {
        name: [rng.uniform(-1, 1) for _ in range(rng.randint(1, 4))]
        for name in names
        if reached[name] is not None and rng.random() < 0.8
    }
    return group_of(follows, rewards, values, discount=0.9)


@pytest.mark.parametrize("unit", ["token", "turn"])
def test_with_lambda_1_it_is_the_return_less_the_value(unit: str) -> None:
    """On 200 random trees with masked turns: the value target is the return of the turn."""
    rng = random.Random(0)
    for _ in range(200):
        group = random_group(rng)
        for name, credit in credit_of(group, unit=unit).items():
            if isinstance(credit, TokenAdvantages):
                expected = group.returns["e"][name]
                assert credit.value_targets == pytest.approx([expected] * len(credit.advantages))


@pytest.mark.parametrize("unit", ["token", "turn"])
def test_the_order_of_finishing_changes_nothing(unit: str) -> None:
    """Whatever order concurrent turns finish in, to the last bit."""
    follows = {"plan": None, "x": "plan", "y": "plan", "z": "plan", "xx": "x"}
    values = {name: (0.1 * at, 0.37) for at, name in enumerate(follows)}
    rewards = {"xx": 0.1, "y": 0.2, "z": 0.7}
    made = set()
    for order in itertools.permutations(["x", "y", "z", "xx"]):
        if order.index("x") < order.index("xx"):
            edges = {name: follows[name] for name in ("plan", *order)}
            credit = credit_of(group_of(edges, rewards, values, discount=0.9), lam=0.7, unit=unit)
            made.add(tuple((name, credit[name]) for name in follows))
    assert len(made) == 1


def test_whitened_over_the_tokens_of_the_batch() -> None:
    """Mean 0 and variance 1, as verl's masked_whiten: (A - mean) / sqrt(var + 1e-8); targets are as before."""
    group = group_of({"a": None, "b": None}, {"a": 1.0, "b": 1.0}, {"a": (0.0, 1.0, -1.0), "b": (0.0,)})
    first, second = credit_of(group, whiten=True).values()
    # advantages 1, 0, 2, 1: mean 1, variance 2/3
    assert [*first.advantages, *second.advantages] == pytest.approx([0.0, -(1.5**0.5), 1.5**0.5, 0.0])
    assert first.value_targets == (1.0, 1.0, 1.0)
