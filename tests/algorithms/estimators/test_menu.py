"""Estimators of the table beside GRPO's, on groups small enough to count by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ludus.algorithms import AlgorithmSettings, GroupReturns, algorithm_of
from ludus.algorithms.base import Returns
from ludus.algorithms.table import ESTIMATORS
from ludus.errors import ConfigError, UserError
from ludus.types import Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn

# By member: returns of its turns, each with how many tokens the turn has.
Members = Mapping[str, Sequence[tuple[float, int]]]


def episode(name: str, turns: Sequence[tuple[float, int]], answers: Sequence[int], **metrics: float) -> Episode:
    """Turn t of the member answers the token `answers[t]`."""
    nodes: list[Node] = []
    made: list[Turn] = []
    for number, (_, length) in enumerate(turns):
        ids = tuple(range(length))
        nodes.append(Node(len(nodes) - 1 if nodes else None, (answers[number],)))
        nodes.append(Node(len(nodes) - 1, ids, f"{name}{number}"))
        sampled = Sampled(ids, (-1.0,) * length, (0,) * length, "stop")
        reply = Message("assistant", "")
        made.append(Turn(f"{name}{number}", len(nodes) - 1, None, None, None, (), reply, sampled, Sampling()))
    record = SessionRecord(name, tuple(nodes), tuple(made))
    return Episode(name, "row", "group", record, {}, Outcome("ok"), metrics=metrics)


def group_of(members: Members, answers: Mapping[str, Sequence[int]] | None = None) -> GroupReturns:
    answers = answers or {}
    episodes = [episode(name, turns, answers.get(name, range(9))) for name, turns in members.items()]
    returns = {name: {f"{name}{n}": value for n, (value, _) in enumerate(turns)} for name, turns in members.items()}
    return GroupReturns(Group("g", "row", tuple(episodes)), returns)


def advantages(groups: Sequence[GroupReturns], **settings: Any) -> list[float]:
    """Of all turns, one after the other."""
    answer: Sequence[Returns] = algorithm_of(AlgorithmSettings(**settings)).advantages(groups)
    return [value for each in answer for turns in each.values() for value in turns.values() if value is not None]


ONE = group_of({"a": [(1.0, 1)], "b": [(0.0, 3)], "c": [(0.5, 4)]})
FLAT = group_of({"d": [(1.0, 2)], "e": [(1.0, 2)]})
TWO = group_of({"f": [(3.0, 2)], "g": [(1.0, 6)]})


def test_opo_weighs_the_baseline_by_length() -> None:
    """(1 * 1 + 0 * 3 + 0.5 * 4) / 8 = 0.375."""
    assert advantages([ONE], name="opo") == pytest.approx([0.625, -0.375, 0.125])


def test_remax_compares_with_the_greedy_answer() -> None:
    """1 and 0 beside the 0.25 of the member of temperature 0, whatever its own place; without it there is nothing."""
    group = group_of({"a": [(0.25, 1)], "b": [(1.0, 3)], "c": [(0.0, 4)]})
    first, *others = group.group.episodes
    turns = tuple(replace(turn, sampling=Sampling(temperature=0.0)) for turn in first.session.turns)
    greedy = replace(first, session=replace(first.session, turns=turns))
    compared = replace(group, group=replace(group.group, episodes=(greedy, *others)))
    assert advantages([compared], name="remax") == [0.0, 0.75, -0.25]
    with pytest.raises(UserError, match="with a return; group 'g' has none"):
        advantages([group], name="remax")
    with pytest.raises(ConfigError, match="scale must be 'none', got 'std'"):
        AlgorithmSettings(advantage={"baseline": "greedy"})


def test_lite_ppo_divides_by_the_spread_of_the_batch() -> None:
    """Rewards 1, 0, .5, 3, 1: mean 1.1, variance 5.2 / 4; the means taken off are the groups' own."""
    divisor = math.sqrt((0.01 + 1.21 + 0.36 + 3.61 + 0.01) / 4) + 1e-4
    expected = [each / divisor for each in (0.5, -0.5, 0.0, 1.0, -1.0)]
    assert advantages([ONE, TWO], name="lite_ppo") == pytest.approx(expected)


def test_maxrl_divides_by_the_mean() -> None:
    """Of rewards 0 and 1 with a success rate of 1/3 the right one counts 2, the others -1."""
    group = group_of({"a": [(1.0, 1)], "b": [(0.0, 1)], "c": [(0.0, 1)]})
    assert advantages([group], name="maxrl") == pytest.approx([2.0, -1.0, -1.0])
    with pytest.raises(UserError, match="not negative, and group 'g' has some"):
        advantages([group_of({"a": [(1.0, 1)], "b": [(-1.0, 1)]})], name="maxrl")


def test_reinforce_plus_plus_whitens_over_the_batch() -> None:
    """Over tokens an episode counts by its length, over episodes once; a baseline takes off the groups' means first."""
    values = [1.0, 0.0, 0.5, 3.0, 1.0]
    divisor = math.sqrt(5.2 / 4 + 1e-8)
    by_episodes = advantages([ONE, TWO], advantage={"kind": "whitened", "over": "episodes"})
    assert by_episodes == pytest.approx([(v - 1.1) / divisor for v in values])
    lengths = [1, 3, 4, 2, 6]
    mean = sum(v * n for v, n in zip(values, lengths, strict=True)) / 16
    variance = sum(n * (v - mean) ** 2 for v, n in zip(values, lengths, strict=True)) / 15
    by_tokens = advantages([ONE, TWO], name="reinforce_plus_plus")
    assert by_tokens == pytest.approx([(v - mean) / math.sqrt(variance + 1e-8) for v in values])
    centered = [0.5, -0.5, 0.0, 1.0, -1.0]
    divisor = math.sqrt(2.5 / 4 + 1e-8)
    advantage = {"kind": "whitened", "baseline": "mean", "over": "episodes"}
    assert advantages([ONE, TWO], advantage=advantage) == pytest.approx([v / divisor for v in centered])


def test_a_groups_spread_may_be_divided_by_before_the_batchs() -> None:
    """AReaL's GRPO: rewards normalised in their groups, 1, 0, .5 and 3, 1, then all tokens of the batch."""
    scaled = [each / (0.5 + 1e-4) for each in (0.5, -0.5, 0.0)]
    scaled += [each / (math.sqrt(2) + 1e-4) for each in (1.0, -1.0)]
    lengths = [1, 3, 4, 2, 6]
    mean = sum(v * n for v, n in zip(scaled, lengths, strict=True)) / 16
    variance = sum(n * (v - mean) ** 2 for v, n in zip(scaled, lengths, strict=True)) / 15
    found = advantages([ONE, TWO], advantage={"kind": "whitened", "baseline": "mean", "scale": "std"})
    assert found == pytest.approx([(v - mean) / math.sqrt(variance + 1e-8) for v in scaled])
    with pytest.raises(ConfigError, match="set baseline: mean"):
        AlgorithmSettings(advantage={"kind": "whitened", "scale": "std"})


def test_statistics_are_of_the_tokens_that_are_trained() -> None:
    """Of tokens that are masked (too old, too long, left out) neither whitening nor OPO's baseline knows: the trained
    advantages have the mean 0."""
    masked = replace(ONE, trainable={"a0": 1, "c0": 2})  # of 1, 3 and 4 tokens
    assert advantages([masked], name="opo") == pytest.approx([1 - 2 / 3, -2 / 3, 0.5 - 2 / 3])
    a, _, c = advantages([masked], name="reinforce_plus_plus")
    assert 1 * a + 2 * c == pytest.approx(0) and (a**2 + 2 * c**2) / 2 == pytest.approx(1)
    a, _, c = advantages([masked], advantage={"kind": "whitened", "over": "episodes"})
    assert a + c == pytest.approx(0) and a**2 + c**2 == pytest.approx(1)
    nothing = replace(ONE, trainable={})
    for name in ("opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        assert all(map(math.isfinite, advantages([nothing], name=name)))
        whole = replace(ONE, trainable={"a0": 1, "b0": 3, "c0": 4})
        assert advantages([whole], name=name) == advantages([ONE], name=name)


def test_what_rounding_leaves_of_a_flat_group_is_nothing() -> None:
    """Beside groups whose mean is not exact in floats, a flat group has exactly 0, so that it is masked."""
    others = [group_of({"a": [(0.1 * n, 1)], "b": [(0.7, 3)], "c": [(0.3, 1)]}) for n in range(8)]
    flat = group_of({"d": [(0.1, 5)], "e": [(0.1, 5)], "f": [(0.1, 5)]})
    advantage = {"kind": "whitened", "baseline": "mean", "over": "episodes"}
    assert advantages([each for other in others for each in (other, flat)], advantage=advantage)[3:6] == [0.0] * 3
    for more in ({}, {"baseline": "mean"}, {"baseline": "mean", "scale": "std"}):
        assert advantages([flat] * 3, advantage={"kind": "whitened", **more}) == [0.0] * 9
    scaled = {**advantage, "scale": "std"}
    assert advantages([each for other in others for each in (other, flat)], advantage=scaled)[3:6] == [0.0] * 3


def test_pass_at_k_credits_the_best_alone() -> None:
    """With what it is above the second; of two best ones neither."""
    assert advantages([ONE, FLAT, TWO], name="pass_at_k") == [0.5, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0]


def test_rewards_that_differ_by_rounding_are_equal() -> None:
    """0.1 + 0.2 and 0.3: no estimator that compares members learns from them, and each calls the group flat."""
    close = group_of({"a": [(0.1 + 0.2, 1)], "b": [(0.3, 3)], "c": [(0.3, 2)]}, {"a": [7], "b": [7], "c": [8]})
    for name in ("grpo", "rloo", "opo", "maxrl", "pass_at_k", "gpg", "gigpo", "dpo", "lite_ppo"):
        algorithm = algorithm_of(AlgorithmSettings(name=name))
        (made,) = algorithm.advantages([close])
        assert not any(value for turns in made.values() for value in turns.values()), name
        assert algorithm.is_flat(close), name
    tied = group_of({"a": [(0.1 + 0.2, 1)], "b": [(0.3, 3)], "c": [(0.0, 2)]})
    assert advantages([tied], name="pass_at_k") == [0.0, 0.0, 0.0]
    less = group_of({"a": [(0.3 - 0.1 - 0.2, 1)], "b": [(1.0, 1)]})  # below 0 by rounding
    assert advantages([less], name="maxrl") == pytest.approx([-1.0, 1.0])


def test_gigpo_knows_that_its_two_advantages_cancel() -> None:
    """What rounding leaves of their sum is nothing to learn from."""
    is_flat = ESTIMATORS["gigpo"].is_flat
    group = group_of({"a": [(0.2, 1)], "b": [(0.3, 1)]}, {"a": [7], "b": [7]})
    episodes = (replace(each, reward=reward) for each, reward in zip(group.group.episodes, (0.1, 0.0), strict=True))
    opposed = replace(group, group=replace(group.group, episodes=tuple(episodes)))
    assert is_flat is not None and is_flat(opposed, step_weight=1.0, scale="none")


def test_gpg_makes_up_for_groups_without_a_signal() -> None:
    """Seven members, two of them in a flat group: the others count 7/5."""
    expected = [v * 7 / 5 for v in (0.5, -0.5, 0.0)] + [0.0, 0.0] + [v * 7 / 5 for v in (1.0, -1.0)]
    assert advantages([ONE, FLAT, TWO], name="gpg") == pytest.approx(expected)


def test_gdpo_normalises_each_reward_by_itself() -> None:
    """A reward a hundred times as large counts as much; what differs in neither is in the middle."""
    metrics = {"a": (1.0, 100.0), "b": (0.0, 100.0), "c": (0.0, 400.0), "d": (1.0, 400.0)}
    episodes = [episode(name, [(0.0, 1)], [0], right=one, speed=two) for name, (one, two) in metrics.items()]
    group = GroupReturns(Group("g", "row", tuple(episodes)), {name: {f"{name}0": 0.0} for name in metrics})
    got = advantages([group], name="gdpo", advantage={"rewards": {"right": 1.0, "speed": 1.0}})
    scale = math.sqrt(8 / 3 / 4 * 3 / 2)  # the sums are x times 0, -2, 0, 2, of which the variance is 8 / 3 x^2
    assert got == pytest.approx([0.0, -math.sqrt(1.5), 0.0, math.sqrt(1.5)], abs=1e-3) and scale == pytest.approx(1)
    with pytest.raises(UserError, match="has no metric 'style'; it has right, speed"):
        advantages([group], name="gdpo", advantage={"rewards": {"style": 1.0}})


def test_gigpo_compares_turns_that_answer_the_same() -> None:
    """Both begin with token 7, then one of them sees 8 and the other 9; the third turn of the first is alone too."""
    members: Members = {"a": [(1.0, 1), (1.0, 1), (1.0, 1)], "b": [(0.0, 1), (0.0, 1)]}
    group = group_of(members, {"a": [7, 8, 5], "b": [7, 9]})
    got = advantages([group], name="gigpo", advantage={"step_weight": 0.5, "scale": "none"})
    assert got == pytest.approx([0.5 + 0.25, 0.5, 0.5, -0.5 - 0.25, -0.5])


def test_gigpo_takes_an_episodes_whole_reward() -> None:
    """Two successes of two and three turns with a discount of .5 are worth the same, and so are their first turns."""
    short = replace(episode("a", [(0.5, 1), (1.0, 1)], [7, 8]), reward=1.0)
    long = replace(episode("b", [(0.25, 1), (0.5, 1), (1.0, 1)], [3, 4, 5]), reward=1.0)
    returns = {"a": {"a0": 0.5, "a1": 1.0}, "b": {"b0": 0.25, "b1": 0.5, "b2": 1.0}}
    group = GroupReturns(Group("g", "row", (short, long)), returns)
    assert advantages([group], name="gigpo") == [0.0] * 5


@pytest.mark.parametrize("kind", sorted(set(ESTIMATORS) - {"own", "gdpo"}))
def test_turns_without_a_return_have_no_advantage(kind: str) -> None:
    """None stays None, and has no say in those of others."""
    group = group_of({"a": [(1.0, 1), (1.0, 2)], "b": [(0.0, 3)]})
    silent = GroupReturns(group.group, {"a": {"a0": None, "a1": 1.0}, "b": {"b0": 0.0}})
    (answer,) = algorithm_of(AlgorithmSettings(advantage=kind)).advantages([silent])  # type: ignore[arg-type]
    assert answer["a"]["a0"] is None
    assert answer["a"]["a1"] is not None and answer["b"]["b0"] is not None


def test_the_best_is_paired_with_the_worst() -> None:
    """One of each, the first of equal ones, none where all are equal; what is not paired has no advantage."""
    several = group_of({"a": [(0.5, 1)], "b": [(1.0, 2), (1.0, 1)], "c": [(1.0, 1)], "d": [(0.0, 1)], "e": [(0.0, 1)]})
    (made, flat) = algorithm_of(AlgorithmSettings(name="dpo")).advantages([several, FLAT])
    assert made["b"] == {"b0": 1.0, "b1": 1.0} and made["d"] == {"d0": -1.0}
    assert made["a"] == {"a0": None} and made["c"] == {"c0": None} and made["e"] == {"e0": None}
    assert flat == {"d": {"d0": None}, "e": {"e0": None}}
