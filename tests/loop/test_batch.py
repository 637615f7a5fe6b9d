"""From rewards to a batch: credit, masks, weights, and an account of every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.overlong import OverlongSettings, overlong_penalty
from ludus.algorithms.pack import OWN, REPLAYED
from ludus.algorithms.settings import AlgorithmSettings
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.batch import (
    BatchRules,
    build_batch,
    by_turn_id,
    can_teach,
    episode_returns,
    flat_group_mask,
    places_to_measure,
    rows_to_measure,
)
from ludus.loop.measure import batch_metrics
from ludus.rollout.groups import Discarded, TakenGroups
from ludus.types import Episode, Group, Outcome, Sampled, Sampling

MakeEpisode = Callable[..., Episode]


def rules(*, ahead: int = 0, discount: float = 1.0, style: Any = "individual", **algorithm: Any) -> BatchRules:
    return BatchRules(AlgorithmSettings(**algorithm), discount, style, row_tokens=64, max_token_age=ahead)


def group(*episodes: Episode, name: str = "g0") -> Group:
    return Group(name, "row0", episodes)


def test_a_group_becomes_advantages_of_its_turns(make_episode: MakeEpisode) -> None:
    """Two members with rewards 1 and 0 train on advantages +0.5 and -0.5, all tokens alike, none masked."""
    members = [make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 0.0})]
    built = build_batch(TakenGroups((group(*members),), ()), rules(advantage={"scale": "none"}), version=0)
    assert built.credit == {"g0-m0/t0": 0.5, "g0-m0/t1": 0.5, "g0-m1/t0": -0.5, "g0-m1/t1": -0.5}
    assert (built.ledger.sampled, built.ledger.trained, built.ledger.masked) == (12, 12, {})
    assert sum(weight for row in built.batch.rows for weight in row.weights) == pytest.approx(1.0)
    assert built.staleness == {0: 12}


def test_tokens_of_a_source_weigh_what_its_settings_say(make_episode: MakeEpisode) -> None:
    """Of two equal groups the one whose source weighs a quarter has a quarter of the other's weight in every token."""
    groups = [
        Group(name, "row0", (make_episode(f"{name}-m0", {1: 1.0}), make_episode(f"{name}-m1", {1: 0.0})), source)
        for name, source in (("g0", "sums"), ("g1", "words"))
    ]
    weighed = replace(rules(), loss_weights={"words": 0.25})
    rows = build_batch(TakenGroups(tuple(groups), ()), weighed, version=0).batch.rows
    weights = sorted(weight for row in rows for weight in row.weights if weight)
    assert weights == pytest.approx([0.25 / 24] * 12 + [1 / 24] * 12)


def test_the_order_of_finishing_changes_nothing(make_episode: MakeEpisode) -> None:
    """The batch of the same groups is the same batch, however groups and members are ordered."""
    members = [make_episode(f"g0-m{number}", {1: float(number)}) for number in range(3)]
    others = [make_episode(f"g1-m{number}", {0: float(number), 1: 1.0}) for number in range(2)]
    one = TakenGroups((group(*members), group(*others, name="g1")), ())
    other = TakenGroups((group(*reversed(others), name="g1"), group(*reversed(members))), ())
    assert build_batch(one, rules(), version=0) == build_batch(other, rules(), version=0)


def test_a_flat_group_is_masked_and_named(make_episode: MakeEpisode) -> None:
    """Equal rewards teach nothing: zero_advantage, and under dynamic sampling not even a place in the batch."""
    flat = group(make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 1.0}))
    built = build_batch(TakenGroups((flat,), ()), rules(), version=0)
    assert built.ledger.masked == {"zero_advantage": 12} and built.batch.num_trained == 0
    assert flat_group_mask(rules(), flat) == "zero_advantage"
    assert flat_group_mask(rules(), group(make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 0.0}))) is None


def test_a_flat_group_that_a_kl_term_trains_is_counted(make_episode: MakeEpisode) -> None:
    """Its tokens are trained, with advantage 0; where nothing computes advantages this says nothing."""
    flat = group(make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 1.0}))
    other = group(make_episode("g1-m0", {1: 1.0}), make_episode("g1-m1", {1: 0.0}), name="g1")
    built = build_batch(TakenGroups((flat, other), ()), rules(kl={"beta": 0.01}), version=0)
    assert built.ledger.trained == 24 and batch_metrics(built)["batch/zero_advantage_tokens"] == 12.0
    assert "batch/zero_advantage_tokens" not in batch_metrics(built, has_advantages=False)
    taught = build_batch(TakenGroups((other,), ()), rules(kl={"beta": 0.01}), version=0)
    assert "batch/zero_advantage_tokens" not in batch_metrics(taught)


def test_the_end_of_the_longest_teaches_nothing_in_a_flat_group(make_episode: MakeEpisode) -> None:
    """Of a group that all solved, one in more turns: no token is trained under the optimal token baseline either."""
    members = [make_episode("g0-m0", {0: 1.0}, num_turns=1), make_episode("g0-m1", {1: 1.0})]
    measured = {turn.id: TokenNumbers(logit_gradients=(0.5,) * 3) for each in members for turn in each.session.turns}
    taken = TakenGroups((group(*members),), ())
    built = build_batch(taken, rules(name="optimal_token"), version=0, measured=measured)
    assert built.ledger.masked == {"zero_advantage": 9} and not built.batch.rows


def test_overlong_answers_lose_some_of_their_reward(make_episode: MakeEpisode) -> None:
    """DAPO eq. 13, of answers of 3 of 4 tokens and a buffer of 2: half the factor, for each turn that a return
    reaches, and passed back as every reward is."""
    member, other = make_episode("g0-m0", {0: 1.0}), make_episode("g0-m1", {1: 0.0})
    overlong = AlgorithmSettings(overlong={"tokens": 2, "penalty_factor": 0.8}, advantage={"scale": "none"})
    asked = replace(rules(discount=0.5), algorithm=overlong.of_length(4))
    credit = build_batch(TakenGroups((group(member, other),), ()), asked, version=0).credit
    # returns: 1 - 0.4, none; -0.4 - 0.5 * 0.4, -0.4. Means 0.6 and -0.5
    assert credit == {
        "g0-m0/t0": pytest.approx(0.55),
        "g0-m0/t1": "no_credit",
        "g0-m1/t0": pytest.approx(-0.65),
        "g0-m1/t1": pytest.approx(-0.45),
    }


def test_gigpo_loses_what_is_taken_off_too(make_episode: MakeEpisode) -> None:
    """The credit of the whole episode is of the reward as it is shaped: 1 - 0.4 of one long answer, 1 - 0.8 of two."""
    one, two = make_episode("g0-m0", {0: 1.0}, num_turns=1), make_episode("g0-m1", {1: 1.0})
    overlong = {"tokens": 2, "penalty_factor": 0.8}
    gigpo = AlgorithmSettings(name="gigpo", overlong=overlong, advantage={"step_weight": 0.0, "scale": "none"})
    asked = replace(rules(), algorithm=gigpo.of_length(4))
    credit = build_batch(TakenGroups((group(one, two),), ()), asked, version=0).credit
    assert credit == {
        name: pytest.approx(0.2 if "m0" in name else -0.2) for name in ("g0-m0/t0", "g0-m1/t0", "g0-m1/t1")
    }


@pytest.mark.parametrize(("num_tokens", "penalty"), [(1, 0.0), (8, 0.0), (9, 0.5), (10, 1.0), (12, 2.0), (15, 2.0)])
def test_the_penalty_rises_over_the_last_tokens(num_tokens: int, penalty: float) -> None:
    """Of 12 tokens the last 4, up to a factor of 2."""
    settings = OverlongSettings(tokens=4, penalty_factor=2.0, max_tokens=12)
    assert overlong_penalty(num_tokens, settings) == penalty


def test_truncated_answers_are_masked_and_named(make_episode: MakeEpisode) -> None:
    """The turn that was cut off is not trained, counts in no mean, and has its say in the group's baseline."""
    members = [make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 0.0})]
    session = members[0].session
    last = replace(session.turns[1], sampled=replace(session.turns[1].sampled, stop_reason="length"))
    members[0] = replace(members[0], session=replace(session, turns=(session.turns[0], last)))
    asked = rules(mask_truncated_completions=True, advantage={"scale": "none"})
    built = build_batch(TakenGroups((group(*members),), ()), asked, version=0)
    assert (built.ledger.trained, built.ledger.masked) == (9, {"truncated": 3})
    assert built.credit["g0-m0/t0"] == 0.5
    assert sum(weight for row in built.batch.rows for weight in row.weights) == pytest.approx(1.0)


NORMALISERS = ["token", "episode", {"kind": "constant", "tokens": 10}]


def groups_of(make_episode: MakeEpisode, rewards: Mapping[str, tuple[float, ...]]) -> TakenGroups:
    """A group of each name, of members with these rewards and two turns of three tokens."""
    return TakenGroups(
        tuple(
            group(*(make_episode(f"{name}-m{n}", {1: reward}) for n, reward in enumerate(members)), name=name)
            for name, members in rewards.items()
        ),
        (),
    )


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_flat_group_counts_in_the_mean(make_episode: MakeEpisode, normaliser: Any) -> None:
    """One group of eight that teaches something moves the weights an eighth as far as it would alone."""
    teaches = {"g0": (1.0, 0.0)}
    alone = build_batch(groups_of(make_episode, teaches), rules(normaliser=normaliser), version=0)
    flat = {f"g{number}": (1.0, 1.0) for number in range(1, 8)}
    among = build_batch(groups_of(make_episode, {**teaches, **flat}), rules(normaliser=normaliser), version=0)
    assert among.ledger.masked == {"zero_advantage": 7 * 12} and among.ledger.trained == 12
    weights = [[weight for row in built.batch.rows for weight in row.weights] for built in (alone, among)]
    assert [weight * 8 for weight in weights[1]] == pytest.approx(weights[0])


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("row_tokens", [8, 24, 1000])
def test_minibatches_are_whole_groups_that_weigh_what_their_tokens_weigh(
    make_episode: MakeEpisode, normaliser: Any, row_tokens: int
) -> None:
    """The same groups for any rows, with as many times the weights as there are parts; a flat part is empty."""
    rewards = {f"g{number}": (1.0 + number, 0.0) for number in range(4)} | {"g4": (1.0, 1.0)}
    taken = groups_of(make_episode, rewards)
    made = {
        count: build_batch(
            taken, replace(rules(normaliser=normaliser, minibatches=count), row_tokens=row_tokens), version=0
        )
        for count in (1, 2, 5, 9)
    }
    assert {count: len(built.batch.minibatches) for count, built in made.items()} == {1: 1, 2: 2, 5: 5, 9: 5}
    assert made[5].batch.minibatches[4] == () and made[5].ledger == made[1].ledger
    trained = {
        count: [sum(len(row.target_ids) for row in part) for part in built.batch.minibatches]
        for count, built in made.items()
    }
    assert trained == {1: [48], 2: [24, 24], 5: [12, 12, 12, 12, 0], 9: [12, 12, 12, 12, 0]}
    whole = sorted(weight for row in made[1].batch.rows for weight in row.weights)
    for count in (2, 5):
        parts = sorted(weight / count for row in made[count].batch.rows for weight in row.weights)
        assert parts == pytest.approx(whole)


def test_a_flat_group_is_trained_where_a_term_needs_no_advantage(make_episode: MakeEpisode) -> None:
    """With a KL term all its tokens count, with the advantage 0; dynamic sampling replaces it all the same."""
    taken = groups_of(make_episode, {"g0": (1.0, 1.0)})
    with_kl = rules(kl={"beta": 0.1}, dynamic_sampling=True)
    built = build_batch(taken, with_kl, version=0)
    assert (built.ledger.trained, built.ledger.masked) == (12, {})
    assert {value for row in built.batch.rows for value in row.advantages} == {0.0}
    assert flat_group_mask(with_kl, taken.groups[0]) == "zero_advantage"


def test_every_reason_is_counted_by_name(make_episode: MakeEpisode) -> None:
    """Unrewarded turns, discarded episodes, old tokens and greedy tokens each have their own line in the ledger."""
    members = [make_episode("g0-m0", {0: 1.0}), make_episode("g0-m1", {1: 0.0}, version=4)]
    others = [make_episode("g1-m0", {1: 1.0}, version=7), make_episode("g1-m1", {1: 0.0}, version=7)]
    greedy = make_episode("g1-m2", {1: 0.5}, version=7, sampling=Sampling(temperature=0.0))
    failed = make_episode("g2-m0", {}, outcome=Outcome("failed", "boom"))
    taken = TakenGroups((group(*members), group(*others, greedy, name="g1")), (Discarded(failed, "failed"),))
    built = build_batch(taken, rules(ahead=2), version=7)
    assert built.ledger.masked == {"no_credit": 3, "stale": 9, "greedy": 6, "failed": 6}
    assert (built.ledger.sampled, built.ledger.trained) == (36, 12)
    assert built.credit["g0-m0/t1"] == "no_credit" and built.credit["g2-m0/t0"] == "failed"
    assert built.staleness == {0: 18, 3: 6, 7: 6}


def test_what_lies_too_far_down_a_conversation_is_not_trained(make_episode: MakeEpisode) -> None:
    """Of paths of 2 + 3 + 1 + 3 tokens, max_sequence_tokens=7 leaves the first turn and one token of the second."""
    members = [make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 0.0})]
    for style in ("individual", "concat"):
        built = build_batch(TakenGroups((group(*members),), ()), rules(style=style, max_sequence_tokens=7), version=0)
        assert (built.ledger.trained, built.ledger.masked) == (8, {"too_long": 4})
        assert built.batch.num_trained == 8
        assert sum(weight for row in built.batch.rows for weight in row.weights) == pytest.approx(1.0)


def test_turn_discount_reaches_earlier_turns(make_episode: MakeEpisode) -> None:
    """With discount 0.5 the turn before the rewarded one has half its return."""
    members = [make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {1: 0.0})]
    built = build_batch(TakenGroups((group(*members),), ()), rules(discount=0.5, name="reinforce"), version=0)
    assert built.credit["g0-m0/t0"] == 0.5 and built.credit["g0-m0/t1"] == 1.0


def test_returns_of_the_agent_are_used_as_they_are(make_episode: MakeEpisode) -> None:
    """Where an agent discounted itself, nothing of a later turn's return is added to an earlier one's."""
    episode = replace(make_episode("g0-m0", {0: 0.25, 1: 1.0}), has_returns=True)
    assert episode_returns(episode, 0.5) == {"g0-m0/t0": 0.25, "g0-m0/t1": 1.0}
    assert episode_returns(replace(episode, has_returns=False), 0.5)["g0-m0/t0"] == 0.75


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_both_export_styles_train_the_same_tokens(make_episode: MakeEpisode, normaliser: Any) -> None:
    """individual and concat hold the same targets with the same weights and advantages."""
    members = [make_episode("g0-m0", {1: 1.0}, num_turns=3), make_episode("g0-m1", {0: 0.0, 1: 0.3})]
    targets = []
    for style in ("individual", "concat"):
        built = build_batch(TakenGroups((group(*members),), ()), rules(style=style, normaliser=normaliser), version=0)
        columns = [zip(row.target_ids, row.advantages, row.weights, strict=True) for row in built.batch.rows]
        targets.append(sorted(target for column in columns for target in column))
    assert targets[0] == targets[1]


def test_credit_is_of_all_groups_at_once(make_episode: MakeEpisode, tmp_path: Path) -> None:
    """An advantage of the user's own that takes the mean over the batch; a group of its own may be flat."""
    (tmp_path / "centre.py").write_text(
        "def less(turns, mean): return {t: v - mean for t, v in turns.items()}\n"
        "def of_batch(groups):\n"
        "    flat = [v for each in groups for turns in each.returns.values() for v in turns.values()]\n"
        "    return [{m: less(ts, sum(flat) / len(flat)) for m, ts in each.returns.items()} for each in groups]\n"
    )
    groups = [group(make_episode(f"g{n}-m0", {1: reward}), name=f"g{n}") for n, reward in enumerate([1.0, 0.0, 0.5])]
    built = build_batch(TakenGroups(tuple(groups), ()), rules(advantage=f"{tmp_path}/centre.py:of_batch"), version=0)
    assert [built.credit[f"g{n}-m0/t1"] for n in range(3)] == [0.5, -0.5, "zero_advantage"]


@pytest.mark.parametrize(
    ("algorithm", "is_trained"),
    [
        ({}, False),
        ({"entropy": {"coef": 0.1}}, True),
        ({"top_entropy": 0.5}, True),
        *(({"loss": loss}, True) for loss in ("kl_cov", "clip_cov", "cross_entropy", {"kind": "dro", "beta": 1.0})),
        ({"loss": {"kind": "own", "path": "mine.py:loss"}}, False),
        ({"loss": {"kind": "own", "path": "mine.py:loss", "needs": ["flat_groups"]}}, True),
    ],
)
def test_who_needs_flat_groups_gets_them(make_episode: MakeEpisode, algorithm: Any, is_trained: bool) -> None:
    """A term or a loss that acts without an advantage, and a loss of the user's that asks for them."""
    built = build_batch(groups_of(make_episode, {"g0": (1.0, 1.0)}), rules(**algorithm), version=0)
    assert built.ledger.trained == (12 if is_trained else 0)


def test_groups_are_flat_whose_returns_agree(make_episode: MakeEpisode) -> None:
    """One member agrees with nobody."""
    alike, apart, one = groups_of(make_episode, {"g0": (1.0, 1.0), "g1": (1.0, 0.0), "g2": (1.0,)}).groups
    for name in ("grpo", "reinforce_plus_plus", "pass_at_k", "reinforce"):
        masks = [flat_group_mask(rules(name=name), each) for each in (alike, apart, one)]
        assert masks == ["zero_advantage", None, None]


def test_groups_are_flat_by_what_their_estimator_looks_at(make_episode: MakeEpisode) -> None:
    """Of two best ones pass@k credits neither; GDPO looks at its own rewards, whatever the task's own does."""
    (tied,) = groups_of(make_episode, {"g0": (1.0, 1.0, 0.0, 0.0)}).groups
    assert flat_group_mask(rules(name="pass_at_k"), tied) == "zero_advantage"
    (alike,) = groups_of(make_episode, {"g0": (1.0, 1.0)}).groups
    gdpo = rules(name="gdpo", advantage={"rewards": {"right": 1.0, "short": 1.0}})

    def measured(*metrics: tuple[float, float]) -> Group:
        given = zip(alike.episodes, metrics, strict=True)
        members = [replace(each, metrics={"right": right, "short": short}) for each, (right, short) in given]
        return replace(alike, episodes=tuple(members))

    assert flat_group_mask(gdpo, measured((1.0, 0.0), (0.0, 1.0))) is None and flat_group_mask(rules(), alike)
    assert flat_group_mask(gdpo, measured((1.0, 0.0), (1.0, 0.0))) == "zero_advantage"


def test_masked_tokens_do_not_move_what_advantages_are_whitened_by(make_episode: MakeEpisode) -> None:
    """Half of the tokens are left out, stale or beyond the longest position, with other rewards: the mean of the
    trained advantages is 0 all the same."""
    members = [make_episode(f"g0-m{idx}", {idx % 2: 1.0, 1 - idx % 2: 0.25 * idx}) for idx in range(4)]
    some = replace(members[0], left_out={"g0-m0/t0": (0, 1), "g0-m0/t1": (2,)})
    old = make_episode("g0-m4", {0: -3.0, 1: 5.0}, version=-1)
    for settings, masked in (({}, {"left_out": 3, "stale": 6}), ({"max_sequence_tokens": 7}, {"too_long": 9})):
        how = rules(discount=0.0, name="reinforce_plus_plus", **settings)
        built = build_batch(TakenGroups((group(some, *members[1:], old),), ()), how, version=0)
        assert masked.items() <= built.ledger.masked.items()
        given = [value for row in built.batch.rows for value in row.advantages]
        assert len(given) == built.ledger.trained and sum(given) == pytest.approx(0, abs=1e-9)


def test_the_length_penalty_saves_no_group_from_the_filter(make_episode: MakeEpisode) -> None:
    """Groups that all solved or all failed are replaced, though one answer is too long, unless the metric is the
    reward with its penalty; a named metric decides by itself."""
    shaped = {"overlong": {"tokens": 2, "max_tokens": 4}, "dynamic_sampling": True}
    equal = group(make_episode("g0-m0", {0: 1.0}, num_turns=1), make_episode("g0-m1", {0: 1.0}, num_turns=1))
    short, long = equal.episodes
    (turn,) = long.session.turns
    longer = Sampled((1, 2, 3, 4), (-1.0,) * 4, (0,) * 4, "stop")
    session = replace(
        long.session,
        turns=(replace(turn, sampled=longer),),
        nodes=(*long.session.nodes[: turn.node], replace(long.session.nodes[turn.node], token_ids=longer.token_ids)),
    )
    alike = replace(equal, episodes=(short, replace(long, session=session)))
    assert flat_group_mask(rules(**shaped), alike) == "zero_advantage"
    assert flat_group_mask(rules(**shaped, dynamic_sampling_metric="reward"), alike) is None
    assert can_teach(rules(**shaped), alike), "the penalty is one to learn from"
    told = [replace(each, metrics={"acc": acc}) for each, acc in zip(alike.episodes, (0.1 + 0.2, 0.3), strict=True)]
    by_acc = rules(dynamic_sampling=True, dynamic_sampling_metric="acc")
    assert flat_group_mask(by_acc, replace(alike, episodes=tuple(told))) == "zero_advantage"
    told[0] = replace(told[0], metrics={"acc": 1.0})
    assert flat_group_mask(by_acc, replace(alike, episodes=tuple(told))) is None
    with pytest.raises(UserError, match="dynamic_sampling_metric='acc': episode 'g0-m0' has no such metric; it has"):
        flat_group_mask(by_acc, alike)


def test_turns_of_equal_members_that_differ_are_flat_for_whom_compares_members(make_episode: MakeEpisode) -> None:
    """Both won in their second turn, of returns 0.95 and 1: DPO has no pair, and GiGPO finds each turn's equal; whole
    rewards that differ are no tie to GiGPO, though all returns agree."""
    (won,) = groups_of(make_episode, {"g0": (1.0, 1.0)}).groups
    masks = [flat_group_mask(rules(discount=0.95, name=name), won) for name in ("dpo", "gigpo", "grpo")]
    assert masks == ["zero_advantage", "zero_advantage", None]
    twice = replace(won, episodes=(replace(won.episodes[0], reward=2.0), won.episodes[1]))
    assert flat_group_mask(rules(name="gigpo"), twice) is None and flat_group_mask(rules(), twice) == "zero_advantage"


def test_what_agrees_is_worth_a_replay_where_it_teaches(make_episode: MakeEpisode) -> None:
    """Without a baseline a solved group pushes as it is, and a failed one only against the mean of the batch."""
    groups = groups_of(make_episode, {"g0": (1.0, 1.0), "g1": (0.0, 0.0), "g2": (1.0, 0.0)}).groups
    for name, expected in (
        ("grpo", [False, False, True]),
        ("reinforce", [True, False, True]),
        ("reinforce_plus_plus", [True, True, True]),
        ("reinforce_plus_plus_baseline", [False, False, True]),
        ("ppo", [True, True, True]),
    ):
        assert [can_teach(rules(name=name), each) for each in groups] == expected, name


@pytest.mark.parametrize("style", ["individual", "concat"])
@pytest.mark.parametrize("row_tokens", [8, 24, 1000])
def test_what_is_measured_of_a_token_comes_back_to_it(
    make_episode: MakeEpisode, learner: Any, tmp_path: Path, style: str, row_tokens: int
) -> None:
    """Every token that can be trained gets the advantage made of its own number, for any rows and either style; the
    masked ones have none."""
    (tmp_path / "own.py").write_text(
        "from ludus.algorithms import TokenAdvantages\n"
        "def of(each, turn, value):\n"
        "    if value is None: return None\n"
        "    return TokenAdvantages(each.measured[turn].reference_logprobs)\n"
        "def all(each): return {m: {t: of(each, t, v) for t, v in ts.items()} for m, ts in each.returns.items()}\n"
        "def fn(groups): return [all(each) for each in groups]\n"
    )
    own = {"kind": "own", "path": f"{tmp_path}/own.py:fn", "measured": ["reference_logprobs"]}
    how = replace(rules(ahead=2, style=style, advantage=own), row_tokens=row_tokens)
    members = [make_episode("g0-m0", {0: 1.0}, num_turns=3), make_episode("g0-m1", {1: 0.0})]
    members.append(replace(make_episode("g0-m2", {1: 0.5}), left_out={"g0-m2/t1": (1,)}))
    groups = (group(make_episode("g1-m0", {1: 1.0}), name="g1"), group(*reversed(members)))
    taken = TakenGroups(groups, ())
    rows = rows_to_measure(taken, how, version=2)
    measured = by_turn_id(taken, learner.measure(rows, {"reference_logprobs"}))
    assert sorted(measured) == ["g0-m0/t0", *(f"{m}/t{n}" for m in ("g0-m1", "g0-m2", "g1-m0") for n in (0, 1))]
    assert [len(each.reference_logprobs or ()) for each in measured.values()].count(2) == 1
    built = build_batch(taken, how, version=2, measured=measured)
    assert (built.ledger.trained, built.ledger.masked) == (20, {"no_credit": 6, "left_out": 1})
    for row in built.batch.rows:
        assert row.advantages == tuple(map(float, row.target_ids))


def test_pairs_of_groups(make_episode: MakeEpisode) -> None:
    """Best and worst are trained, the third is not paired, ties make no pair and count in no mean."""
    taken = groups_of(make_episode, {"g0": (1.0, 0.5, 0.0), "g1": (0.0, 2.0), "g2": (1.0, 1.0)})
    built = build_batch(taken, rules(name="dpo"), version=0)
    assert built.ledger.masked == {"not_paired": 6, "zero_advantage": 12} and built.ledger.trained == 24
    assert built.credit["g0-m1/t0"] == "not_paired" and built.credit["g1-m0/t1"] == -1.0
    (row,) = built.batch.rows
    assert row.groups is not None and {*zip(row.groups, row.advantages, strict=True)} == {
        (0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)
    }  # fmt: skip
    # four sequences of six tokens: the mean over two pairs
    assert row.weights == pytest.approx([1 / 24] * 24)


def test_what_is_on_neither_side_is_not_paired(make_episode: MakeEpisode, tmp_path: Path) -> None:
    """An advantage of the user's of exactly 0 is no side of a pair: those tokens are in nobody's sum."""
    (tmp_path / "own.py").write_text(
        "def fn(groups):\n    return [each.map(lambda member, turn, value: value) for each in groups]\n"
    )
    own = {"kind": "own", "path": f"{tmp_path}/own.py:fn"}
    built = build_batch(groups_of(make_episode, {"g0": (1.0, -1.0, 0.0)}), rules(name="dpo", advantage=own), version=0)
    assert built.ledger.masked == {"not_paired": 6} and built.credit["g0-m2/t0"] == "not_paired"
    (row,) = built.batch.rows
    assert {*row.advantages} == {1.0, -1.0}


@pytest.mark.parametrize(("name", "trained"), [("dpo", 12), ("kto", 18)])
def test_half_a_pair_is_none(make_episode: MakeEpisode, name: str, trained: int) -> None:
    """Where the worst has grown too old the best has nothing to be compared with; KTO compares with no other."""
    taken = groups_of(make_episode, {"g0": (1.0, 0.0), "g1": (1.0, 0.0)})
    best, worst = taken.groups[0].episodes
    old = replace(worst, left_out={turn.id: range(3) for turn in worst.session.turns})
    halved = TakenGroups((replace(taken.groups[0], episodes=(best, old)), taken.groups[1]), ())
    built = build_batch(halved, rules(name=name), version=0)
    assert built.ledger.trained == trained
    assert built.ledger.masked == ({"not_paired": 12} if name == "dpo" else {"left_out": 6})
    assert sum(weight for row in built.batch.rows for weight in row.weights) == pytest.approx(1.0)


def test_what_is_replayed_is_trained_outside_the_law(make_episode: MakeEpisode) -> None:
    """Its tokens count in the denominator, whatever their age, with the logprobs that were recorded; the ledger names
    them beside its law, and neither credit nor staleness tells of them again."""
    fresh = group(make_episode("g1-m0", {1: 1.0}, version=9), make_episode("g1-m1", {1: 0.0}, version=9), name="g1")
    old = group(make_episode("g0-m0", {1: 1.0}), make_episode("g0-m1", {0: 0.0}))
    built = build_batch(TakenGroups((fresh,), (), replayed=(old,)), rules(advantage={"scale": "none"}), version=9)
    # the second turn of g0-m1 is not reached by its return
    assert built.ledger == Ledger(sampled=12, trained=12, masked={}, replayed=9)
    assert built.batch.num_trained == 21
    assert built.credit.keys() == {f"g1-m{member}/t{turn}" for member in range(2) for turn in range(2)}
    assert built.staleness == {0: 12}
    by_origin: dict[int, list[float]] = {}
    for row in built.batch.rows:
        assert row.weights == pytest.approx((1 / 21,) * len(row.weights))
        for origin, advantage in zip(row.origins, row.advantages, strict=True):
            by_origin.setdefault(origin, []).append(advantage)
    assert sorted(by_origin[OWN]) == [-0.5] * 6 + [0.5] * 6
    assert sorted(by_origin[REPLAYED]) == [-0.5] * 3 + [0.5] * 6


def test_what_is_replayed_is_spread_over_the_batch(make_episode: MakeEpisode) -> None:
    """Its ids are earlier than the others', and still no minibatch holds all of it."""

    def groups(first: int, count: int) -> tuple[Group, ...]:
        names = [f"g{number}" for number in range(first, first + count)]
        return tuple(group(make_episode(f"{name}-m0", {1: 1.0}), name=name) for name in names)

    taken = TakenGroups(groups(4, 4), (), replayed=groups(0, 2))
    assert [each.id for each in taken.trained] == ["g4", "g0", "g5", "g6", "g1", "g7"]


def test_what_is_replayed_is_measured_with_the_batch(make_episode: MakeEpisode) -> None:
    """By the same numbers of turns as in the batch."""
    fresh = group(make_episode("g1-m0", {1: 1.0}, version=9), name="g1")
    taken = TakenGroups((fresh,), (), replayed=(group(make_episode("g0-m0", {1: 1.0})),))
    assert rows_to_measure(taken, rules(), version=9).num_trained == 12
    places = places_to_measure(taken, rules(), version=9)
    assert places == {f"g{number}-m0/t{turn}": (0, 1, 2) for number in range(2) for turn in range(2)}
