"""Experts' conversations as members of the groups of their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.pack import DEMONSTRATED, OWN
from ludus.algorithms.settings import AlgorithmSettings
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.batch import BatchRules, build_batch, flat_group_mask, rows_to_measure
from ludus.loop.demonstrations import Demonstrations
from ludus.loop.sft import conversation_sequences
from ludus.rollout.groups import TakenGroups
from ludus.rollout.mixture import Source
from ludus.rollout.tasks import GroupTask
from ludus.text.chat import ChatText
from ludus.types import Episode, Group

MakeEpisode = Callable[..., Episode]
TALK = [
    {"role": "user", "content": "Guess."},
    {"role": "assistant", "content": "7"},
    {"role": "user", "content": "higher"},
    {"role": "assistant", "content": "13"},
]


@pytest.fixture(scope="module")
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder)


def demonstrate(text: ChatText, value: Any) -> tuple[Episode, ...]:
    task = GroupTask(ordinal=0, source=Source([{"target": value}]), epoch=0, row_idx=0, run_seed=1)
    return Demonstrations(text, "target", reward=0.5, temperature=0.8)(task)


def test_a_conversation_is_an_episode_of_its_replies(text: ChatText) -> None:
    """Token for token as supervised training takes it; the last reply has the reward, and the first one follows."""
    (episode,) = demonstrate(text, TALK)
    first, second = episode.session.turns
    expected = conversation_sequences({"messages": TALK}, text)
    for turn, sequence in zip((first, second), expected, strict=True):
        assert episode.session.path_ids(turn.node) == sequence.token_ids
        assert len(turn.sampled.token_ids) == len(sequence.target_idx)
        assert set(turn.sampled.logprobs) == {0.0} and turn.sampling.temperature == 0.8
    assert (second.follows, second.reply.content) == (first.id, "13")
    assert (episode.rewards, episode.reward, episode.group_id) == ({second.id: 0.5}, 0.5, "g000000")


def test_several_forms_are_read(text: ChatText) -> None:
    """Mappings may bring a reward, metrics and tools; nothing is none; anything else is named."""
    mapping = {"messages": TALK, "reward": 2.0, "metrics": {"success": 1.0}}
    one, other = demonstrate(text, [mapping, TALK[:2]])
    assert (one.reward, one.metrics, other.reward) == (2.0, {"success": 1.0}, 0.5)
    assert [each.id for each in (one, other)] == ["g000000-d00", "g000000-d01"]
    assert demonstrate(text, None) == demonstrate(text, []) == ()
    for wrong, message in (
        ("7", "row0, train_dataset.demonstrations='target': '7' is no conversation; give a list"),
        ([3], "3 is no conversation"),
        (TALK[:1], "there is no message of the assistant's"),
        ({"messages": TALK, "reward": "much"}, "row0, train_dataset.demonstrations='target': .*'much'"),
        ([{"role": "robot", "content": "7"}], "is no conversation: "),
    ):
        with pytest.raises(UserError, match=message):
            demonstrate(text, wrong)


def test_a_demonstration_is_compared_with_the_others(text: ChatText, make_episode: MakeEpisode) -> None:
    """A group that all failed is not flat beside an expert that did not: by hand, of rewards 0, 0 and 3 the mean is 1.
    Its tokens count in the denominator; the ledger has them beside its law, and credit tells of what was sampled."""
    expert = demonstrate(text, {"messages": TALK[:2], "reward": 3.0})
    members = make_episode("g000000-m0", {1: 0.0}, version=5), make_episode("g000000-m1", {1: 0.0}, version=5)
    group = Group("g000000", "row0", members, demonstrations=expert)
    rules = BatchRules(AlgorithmSettings(advantage={"scale": "none"}), 1.0, "individual", 64, max_token_age=0)
    assert flat_group_mask(rules, group) is None
    self_play = replace(rules, algorithm=AlgorithmSettings(name="rae"))
    assert build_batch(TakenGroups((group,), ()), self_play, version=5).memory == {"rae//": 0.0}
    built = build_batch(TakenGroups((group,), ()), rules, version=5)
    (given,) = (len(turn.sampled.token_ids) for turn in expert[0].session.turns)
    assert built.ledger == Ledger(sampled=12, trained=12, masked={}, demonstrated=given)
    assert built.credit == {f"g000000-m{member}/t{turn}": -1.0 for member in range(2) for turn in range(2)}
    seen = [each for row in built.batch.rows for each in zip(row.origins, row.advantages, row.weights, strict=True)]
    weight = pytest.approx(1 / (12 + given))
    assert sorted(seen) == [(OWN, -1.0, weight)] * 12 + [(DEMONSTRATED, 2.0, weight)] * given
    assert rows_to_measure(TakenGroups((group,), ()), rules, version=5).num_trained == 12 + given
