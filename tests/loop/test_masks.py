"""Which members of a group are trained, and which only serve to measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import UserError
from ludus.loop.batch import BatchRules, build_batch
from ludus.rollout.groups import TakenGroups
from ludus.types import Episode, Group

MakeEpisode = Callable[..., Episode]


def rules(*, discount: float = 1.0, **algorithm: Any) -> BatchRules:
    return BatchRules(AlgorithmSettings(**algorithm), discount, "individual", row_tokens=64, max_token_age=0)


def group(*episodes: Episode, name: str = "g0") -> Group:
    return Group(name, "row0", episodes)


def test_episodes_without_a_side_measure_and_count_in_no_mean(make_episode: MakeEpisode) -> None:
    """KTO: the middle of a group and flat groups are in the rows with advantage and weight 0, masked in the ledger; the
    weights are of the best and the worst alone. Where nothing has a side nothing is measured."""
    members = [make_episode(f"g0-m{idx}", {1: reward}) for idx, reward in enumerate((1.0, 0.5, 0.0))]
    flat = [make_episode(f"g1-m{idx}", {1: 1.0}) for idx in range(2)]
    groups = group(*members), group(*flat, name="g1")
    built = build_batch(TakenGroups(groups, ()), rules(name="kto"), version=0)
    assert (built.ledger.trained, built.ledger.masked) == (12, {"not_paired": 6, "zero_advantage": 12})
    assert built.credit["g0-m1/t0"] == "not_paired" and built.credit["g1-m0/t1"] == "zero_advantage"
    tokens = [
        (advantage, round(weight, 9))
        for row in built.batch.rows
        for advantage, weight in zip(row.advantages, row.weights, strict=True)
    ]
    assert Counter(tokens) == {(1.0, round(1 / 12, 9)): 6, (-1.0, round(1 / 12, 9)): 6, (0.0, 0.0): 18}
    assert {turn_id for turn_id, _ in built.turns.values()} == {
        turn.id for each in (*members, *flat) for turn in each.session.turns
    }
    alone = build_batch(TakenGroups((groups[1],), ()), rules(name="kto"), version=0)
    assert alone.batch.num_trained == 0 and alone.ledger.masked == {"zero_advantage": 12}


def test_an_episode_has_one_side(make_episode: MakeEpisode, tmp_path: Path) -> None:
    """An advantage of the user's own that gives turns of an episode both signs is refused by name."""
    (tmp_path / "mine.py").write_text(
        "def by_turn(groups):\n    return [each.map(lambda member, turn, value: value - 0.4) for each in groups]\n"
    )
    algorithm = {"name": "kto", "advantage": f"{tmp_path}/mine.py:by_turn"}
    mixed = group(make_episode("g0-m0", {0: 1.0, 1: -1.0}), make_episode("g0-m1", {1: 1.0}))
    with pytest.raises(UserError, match=r"loss=kto takes each episode .* of episode 'g0-m0' advantages of different"):
        build_batch(TakenGroups((mixed,), ()), rules(discount=0.0, **algorithm), version=0)
    one_sided = group(make_episode("g0-m0", {1: 0.0}), make_episode("g0-m1", {1: 1.0}))
    assert build_batch(TakenGroups((one_sided,), ()), rules(**algorithm), version=0).ledger.trained
