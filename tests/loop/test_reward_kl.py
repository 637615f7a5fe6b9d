"""A batch whose rewards lose the divergence from the first weights. Each chain has two turns of three tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.settings import AlgorithmSettings
from ludus.loop.batch import BatchRules, BuiltBatch, build_batch
from ludus.loop.measure import batch_metrics
from ludus.rollout.groups import TakenGroups
from ludus.types import Group
from tests.loop.conftest import MakeEpisode

VALUES = (0.1, 0.2, 0.3)
OTHERS = {"g0-m1/t0": (0.0, 0.0, 0.0), "g0-m1/t1": (0.0, 0.0, 0.0)}
"""Log mu - log ref of each token of the second member."""


def build(make_episode: MakeEpisode, rewards: tuple[float, float], **keys: Any) -> BuiltBatch:
    """Of two members; the tokens of the first cost 0.1 times 1, 2, 3 nats, and 0.1 times 4, 0, 2."""
    settings = AlgorithmSettings(reward_kl={"coef": 0.1, "target": 1.0, "horizon": 10}, correction="bypass", **keys)
    rules = BatchRules(settings, 0.5, "individual", 64, 0)
    nats = {"g0-m0/t0": (1.0, 2.0, 3.0), "g0-m0/t1": (4.0, 0.0, 2.0), **OTHERS}
    measured = {
        turn: TokenNumbers(values=VALUES, sampled_logprobs=(0.0, 0.0, 0.0), reference_logprobs=tuple(-x for x in each))
        for turn, each in nats.items()
    }
    members = tuple(make_episode(f"g0-m{number}", {1: reward}) for number, reward in enumerate(rewards))
    return build_batch(TakenGroups((Group("g0", "row", members),), ()), rules, version=0, measured=measured)


def of_tokens(built: BuiltBatch) -> list[float]:
    """Advantages of the first member's two turns."""
    return [value for row in built.batch.rows for value in row.advantages][:6]


def test_a_turn_loses_what_its_tokens_cost(make_episode: MakeEpisode) -> None:
    """Returns 1 - 0.6, and -0.6 + 0.5 (1 - 0.6) of the turn before; 0 of the other member."""
    built = build(make_episode, (1.0, 0.0), advantage={"baseline": "none", "scale": "none"})
    assert of_tokens(built) == pytest.approx([-0.4] * 3 + [0.4] * 3)


def test_a_flat_group_learns_from_what_it_cost(make_episode: MakeEpisode) -> None:
    """Equal rewards, unequal divergences: nothing is masked."""
    built = build(make_episode, (1.0, 1.0), advantage={"scale": "none"})
    assert built.ledger.trained == 12 and not built.ledger.masked
    # returns 0.5 - 0.6 - 0.3, 0.4 and 0.5, 1: means 0 and 0.75
    assert of_tokens(built) == pytest.approx([-0.775] * 3 + [0.025] * 3)


def test_what_is_seen_and_remembered(make_episode: MakeEpisode) -> None:
    """1.2 over two episodes; 2 and 0 nats of a token: at the target, so the coefficient stays. A fourfold target is not
    reached: times 1 - 0.2 * 2 / 10."""
    built = build(make_episode, (1.0, 0.0))
    seen = batch_metrics(built)
    assert seen["reward_kl/penalty"] == pytest.approx(0.6)
    assert (seen["reward_kl/token_nats"], seen["reward_kl/coef"]) == (1.0, 0.1)
    assert built.memory == {"reward_kl/coef": pytest.approx(0.1)}


def test_with_a_critic_each_token_pays_for_itself(make_episode: MakeEpisode) -> None:
    """The recurrence of GAE with rewards -0.1, -0.2, -0.3 of the first turn's tokens and -0.4, 0, 1 - 0.2 of the
    second's; the discount of turns 0.5, lam 0.5."""
    advantage = {"kind": "gae", "lam": 0.5, "whiten": False}
    found: list[float] = []
    later, after = 0.0, 0.0
    steps = zip([-0.1, -0.2, -0.3, -0.4, 0.0, 0.8], VALUES * 2, [1.0, 1.0, 0.5, 1.0, 1.0, 0.0], strict=True)
    for reward, value, discount in reversed(list(steps)):
        later = reward + discount * after - value + discount * 0.5 * later
        after = value
        found.append(later)
    assert of_tokens(build(make_episode, (1.0, 0.0), advantage=advantage)) == pytest.approx(found[::-1])


def test_by_turn_its_reward_pays(make_episode: MakeEpisode) -> None:
    """Rewards -0.6 and 1 - 0.6, the value of a turn that of its first token, lam 1."""
    advantage = {"kind": "gae", "unit": "turn", "whiten": False}
    built = build(make_episode, (1.0, 0.0), advantage=advantage)
    assert of_tokens(built) == pytest.approx([-0.4 - 0.1] * 3 + [0.4 - 0.1] * 3)


def test_without_a_critic_a_token_pays_for_what_follows(make_episode: MakeEpisode) -> None:
    """REINFORCE++ is GAE with lam 1 whose critic expects nothing, whitened over the tokens."""
    built = build(make_episode, (1.0, 0.0), name="reinforce_plus_plus")
    to_go = [-0.4, -0.3, -0.1, 0.4, 0.8, 0.8, *[0.0] * 6]
    mean = sum(to_go) / 12
    spread = (sum((each - mean) ** 2 for each in to_go) / 11) ** 0.5
    assert of_tokens(built) == pytest.approx([(each - mean) / spread for each in to_go[:6]])


def test_what_others_are_compared_with_costs_nothing(make_episode: MakeEpisode) -> None:
    """The member that took the likeliest answers is no sample of the policy."""
    sampled, likeliest = make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 1.0})
    turns = tuple(replace(turn, sampling=replace(turn.sampling, temperature=0.0)) for turn in likeliest.session.turns)
    likeliest = replace(likeliest, session=replace(likeliest.session, turns=turns))
    assert likeliest.is_greedy
    settings = AlgorithmSettings(name="remax", reward_kl={"coef": 0.1}, correction="bypass")
    numbers = TokenNumbers(sampled_logprobs=(0.0,) * 3, reference_logprobs=(-1.0,) * 3)
    measured = {turn.id: numbers for each in (sampled, likeliest) for turn in each.session.turns}
    taken = TakenGroups((Group("g0", "row", (sampled, likeliest)),), ())
    built = build_batch(taken, BatchRules(settings, 1.0, "individual", 64, 0), version=0, measured=measured)
    # returns 1 - 0.6 and 1 - 0.3, compared with 1
    assert of_tokens(built) == pytest.approx([-0.6] * 3 + [-0.3] * 3)
    assert built.reward_kl is not None and built.reward_kl.num_episodes == 1
