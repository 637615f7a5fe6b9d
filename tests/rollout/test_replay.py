"""Good groups that are trained on again: which are kept, which are drawn, and that a run goes on with the same ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from ludus.rollout.replay import ReplayBuffer, ReplayState
from ludus.rollout.settings import ReplaySettings
from ludus.types import Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn


def group(number: int, *rewards: float, version: int = 0, source: str = "") -> Group:
    """Of members with one turn of one token each."""

    def member(idx: int, reward: float) -> Episode:
        sampled = Sampled((1,), (-0.5,), (version,), "stop")
        turn = Turn(f"g{number}-m{idx}/t", 1, None, None, None, (), Message("assistant"), sampled, Sampling())
        session = SessionRecord(f"s{number}-{idx}", (Node(None, (0,)), Node(0, (1,), turn.id)), (turn,))
        names = f"g{number}-m{idx}", f"row{number}", f"g{number}"
        return Episode(*names, session, {turn.id: reward}, Outcome("ok"), reward=reward)

    return Group(f"g{number}", f"row{number}", tuple(member(*each) for each in enumerate(rewards)), source)


def make_buffer(*, batch_size: int = 4, state: ReplayState | None = None, **settings: Any) -> ReplayBuffer:
    """Of groups whose rewards differ."""

    def teaches(played: Group) -> bool:
        return len({each.reward for each in played.episodes}) > 1

    how = ReplaySettings(**{"share": 0.5, **settings})
    return ReplayBuffer(how, seed=7, batch_size=batch_size, teaches=teaches, state=state)


def kept(buffer: ReplayBuffer) -> list[str]:
    return [each.id for each in buffer.state.groups]


def test_what_is_good_is_kept() -> None:
    """Its best reward and its mean reach the bounds, and its returns differ."""
    groups = [group(0, 1.0, 0.0), group(1, 0.5, 0.5, 0.4), group(2, 1.0, 1.0), group(3, 1.0, 0.6), group(4, 0.4, 0.0)]
    for settings, expected in (
        ({}, ["g0", "g1", "g3", "g4"]),
        ({"min_best": 1.0}, ["g0", "g3"]),
        ({"min_mean": 0.45}, ["g0", "g1", "g3"]),
        ({"min_best": 0.5, "min_mean": 0.6}, ["g3"]),
        ({"min_best": 0.1 + 0.2 + 0.7 + 1e-15, "min_mean": 0.8 + 1e-15}, ["g3"]),  # reached, up to rounding
        ({"size": 2}, ["g3", "g4"]),
    ):
        buffer = make_buffer(**settings)
        buffer.add(groups, version=1)
        assert kept(buffer) == expected, settings


def test_what_is_too_old_is_kept_no_longer() -> None:
    """With max_age=2 weights 5 train what weights 3 sampled, and nothing older."""
    buffer = make_buffer(max_age=2)
    buffer.add([group(0, 1.0, 0.0, version=2), group(1, 1.0, 0.0, version=3)], version=4)
    assert kept(buffer) == ["g0", "g1"]
    buffer.add([group(2, 1.0, 0.0, version=2)], version=5)
    assert kept(buffer) == ["g1"]


@pytest.mark.parametrize(("share", "batch_size", "places"), [(0.5, 5, 2), (0.29, 100, 29), (0.99, 2, 1), (0.1, 8, 0)])
def test_a_share_is_rounded_down(share: float, batch_size: int, places: int) -> None:
    assert ReplaySettings(share=share).num_places(batch_size) == places


def test_the_draw_follows_from_seed_and_version() -> None:
    """Equal for equal state, each group at most once, every group sooner or later; no more than are kept."""
    groups = {each.id: each for each in (group(number, 1.0, 0.0, source="sums") for number in range(5))}
    episodes = {each.id: each for played in groups.values() for each in played.episodes}
    buffer = make_buffer()
    assert buffer.num_places == 0 and buffer.draw(0, episodes.__getitem__) == ()
    buffer.add(groups.values(), version=1)
    stored = json.loads(json.dumps(asdict(buffer.state)))
    again = make_buffer(state=ReplayState.of_json(stored))
    assert again.state == buffer.state
    seen = set()
    for version in range(20):
        drawn = buffer.draw(version, episodes.__getitem__)
        assert drawn == again.draw(version, episodes.__getitem__)
        assert len({each.id for each in drawn}) == 2 and all(each == groups[each.id] for each in drawn)
        seen |= {each.id for each in drawn}
    assert seen == groups.keys()
