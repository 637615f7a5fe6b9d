"""Baselines of roles, which move with what the roles get: counted by hand from SPIRAL's alg. 1."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ludus.algorithms import AlgorithmSettings, GroupReturns, algorithm_of
from ludus.types import Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn


def game(name: str, rewards: Mapping[str, float], kind: str = "chess") -> GroupReturns:
    """A group of one episode in which each agent has one turn, named after it; rewards by agent."""
    answer = Sampled((7,), (-1.0,), (0,), "stop")
    turns = tuple(
        Turn(f"{name}/{agent}", number, None, None, None, (), Message("assistant", ""), answer, Sampling(), agent)
        for number, agent in enumerate(rewards)
    )
    record = SessionRecord(name, tuple(Node(None, (7,), turn.id) for turn in turns), turns)
    episode = Episode(name, "row", name, record, {}, Outcome("ok"), metadata={"game": kind})
    returns = {name: {f"{name}/{agent}": value for agent, value in rewards.items()}}
    return GroupReturns(Group(name, "row", (episode,)), returns)


RAE = algorithm_of(AlgorithmSettings(advantage={"kind": "rae", "decay": 0.9}))


def test_each_role_has_its_own_baseline() -> None:
    """b of white: 0.1, then 0.9 * 0.1 - 0.1 = -0.01; of black the negative; A = R - b after the update."""
    advantages, memory = RAE.estimate([game("e0", {"w": 1.0, "b": -1.0}), game("e1", {"w": -1.0, "b": 1.0})], {})
    assert advantages[0]["e0"] == pytest.approx({"e0/w": 0.9, "e0/b": -0.9})
    assert advantages[1]["e1"] == pytest.approx({"e1/w": -0.99, "e1/b": 0.99})
    assert memory == pytest.approx({"rae//w": -0.01, "rae//b": 0.01})


def test_what_is_remembered_goes_on() -> None:
    """Two batches are as one of both; what others remember stays."""
    first, second = game("e0", {"w": 1.0, "b": -1.0}), game("e1", {"w": 0.5, "b": 0.0})
    _, memory = RAE.estimate([first], {"entropy/coef": 0.5})
    later, after = RAE.estimate([second], memory)
    whole, end = RAE.estimate([first, second], {"entropy/coef": 0.5})
    assert (later[0], after) == (whole[1], end) and end["entropy/coef"] == 0.5


def test_games_are_told_apart_by_metadata() -> None:
    """With `game`, a role's baseline in one does not move another's."""
    rae = algorithm_of(AlgorithmSettings(advantage={"kind": "rae", "game": "game"}))
    _, memory = rae.estimate([game("e0", {"w": 1.0}), game("e1", {"w": -1.0}, kind="go")], {})
    assert memory == pytest.approx({"rae/chess/w": 0.05, "rae/go/w": -0.05})


def test_an_experts_episode_moves_no_baseline() -> None:
    """It is compared with what the policy got: the baseline of white is 0.1 when it comes, and stays so."""
    one, given = game("e0", {"w": 1.0}), game("e1", {"w": 3.0, "b": 0.5})
    experts = given.group.episodes
    both = Group("g", "row", (*one.group.episodes, *experts), demonstrations=experts)
    advantages, memory = RAE.estimate([GroupReturns(both, {**one.returns, **given.returns})], {})
    assert advantages[0]["e1"] == pytest.approx({"e1/w": 2.9, "e1/b": 0.5}) and memory == pytest.approx({"rae//w": 0.1})


def test_the_order_of_finishing_changes_nothing() -> None:
    """Members count in the order of their ids, roles by themselves; turns without a return not at all."""
    one = game("e0", {"w": 1.0, "b": 0.0})
    other = game("e1", {"b": 0.5, "w": 0.25})
    both = Group("g", "row", (*one.group.episodes, *other.group.episodes))
    returns = {**one.returns, **other.returns}
    assert RAE.estimate([GroupReturns(both, returns)], {}) == RAE.estimate(
        [GroupReturns(replace(both, episodes=both.episodes[::-1]), returns)], {}
    )
    silent = GroupReturns(one.group, {"e0": {"e0/w": None, "e0/b": 0.0}})
    advantages, memory = RAE.estimate([silent], {})
    assert advantages[0]["e0"] == {"e0/w": None, "e0/b": 0.0} and memory == {"rae//b": 0.0}
