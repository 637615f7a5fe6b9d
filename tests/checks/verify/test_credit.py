"""The credit check agrees with the returns computed by hand, and would notice if it did not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.checks.verify import credit, order
from ludus.checks.verify.credit import CreditResult, verify_credit
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.reward import not_chosen
from ludus.episodes.spec import SessionSpec
from ludus.types import Episode, SessionRecord, Turn


def _unfollowed(episode: Episode) -> list[str]:
    turns = episode.session.turns
    followed = {turn.follows for turn in turns}
    return [turn.id for turn in turns if turn.id not in followed]


def test_all_hand_computed_returns_hold(tiny_model_folder: Path) -> None:
    """Every turn of every episode has the return written beside it."""
    result = verify_credit(model=str(tiny_model_folder), trees=1)
    assert result.ok, [row for row in result.rows if row.abs_diff]
    assert result.to_json()["max_abs_diff"] <= 1e-12  # type: ignore[operator]


def test_the_embedded_model_has_the_same_credit(smollm2: Path, tiny_model_folder: Path) -> None:
    """Credit does not depend on how a tokenizer cuts the text."""
    assert verify_credit(model=str(smollm2), trees=1).rows == verify_credit(model=str(tiny_model_folder), trees=1).rows


def test_the_recorder_makes_of_the_episodes_what_they_claim(tiny_model_folder: Path) -> None:
    """One forks by an edit, one by stripped reasoning, one follows across agents, one is not reached."""
    rows = {(row.episode, row.turn): row for row in verify_credit(model=str(tiny_model_folder), trees=1).rows}
    assert rows["branching", "d"].fork == "edit" and rows["branching", "d"].follows == "a"
    assert rows["reasoning stripped", "b"].fork == "reasoning_stripped"
    assert rows["sub-agent", "h1"].follows == "m1" and rows["sub-agent", "m2"].follows == "m1"
    assert rows["unreached", "c"].got is None
    assert {rows["workers", name].follows for name in ("w1", "w2", "w3", "merge")} == {"plan"}
    assert rows["helpers", "h1"].follows == rows["helpers", "h2"].follows == "m1"
    assert [name for episode, name in rows if episode == "retries"] == ["a", "b", "c"]
    assert all(rows["outcome", turn].fork is None for turn in "abc")


@pytest.mark.parametrize(
    ("rule", "noticed"),
    [
        # each is the same whatever finished first, and wrong
        (lambda episode: [episode.session.turns[-1].id], {"workers", "best of three", "retries"}),  # the last asked
        (lambda episode: [turn.id for turn in episode.session.turns], {"outcome", "workers", "retries"}),  # every turn
        (_unfollowed, {"best of three", "asked again"}),  # every leaf, whether another answer was chosen or not
    ],
)
def test_a_wrong_rule_that_no_order_changes_is_noticed(
    rule: Callable[[Episode], list[str]],
    noticed: set[str],
    tiny_model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of the hand see what two orders of the same answers cannot."""

    def by_rule(spec: SessionSpec, record: SessionRecord, ended: Returned, **rest: Any) -> Episode:
        episode = finish(spec, record, ended, **rest)
        if isinstance(ended.value, Mapping):
            return episode
        return replace(episode, rewards=dict.fromkeys(rule(episode), float(ended.value)))

    monkeypatch.setattr(credit, "finish", by_rule)
    result = verify_credit(model=str(tiny_model_folder), trees=1)
    assert noticed <= {row.episode for row in result.rows if row.abs_diff}


def test_a_wrong_return_fails_the_check(tiny_model_folder: Path) -> None:
    """A return that is off, and one that should not exist, both count."""
    row = verify_credit(model=str(tiny_model_folder), trees=1).rows[0]
    assert not CreditResult.of("any", (replace(row, got=0.9),)).ok
    assert CreditResult.of("any", (replace(row, got=None),)).max_abs_diff == math.inf


def test_no_return_depends_on_which_answer_came_first(tiny_model_folder: Path) -> None:
    """Random agents with parallel workers, sub-agents, several answers and retries, in process and over HTTP."""
    result = verify_credit(model=str(tiny_model_folder), trees=200, seed=7)
    assert result.ok and result.changed == () and result.to_json()["trees"] == 200
    assert not replace(result, changed=(3,)).ok and not replace(result, misjudged=(3,)).ok


def test_a_rule_that_ignores_who_asked_fails_on_random_agents(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves out answers of other agents and of workers at once, the same in every order; the agents know better."""

    def whoever_asked(turns: Sequence[Turn], **rest: Any) -> frozenset[str]:
        return not_chosen([replace(turn, agent="", started_at=0.0, finished_at=0.0) for turn in turns], **rest)

    monkeypatch.setattr(order, "not_chosen", whoever_asked)
    result = verify_credit(model=str(tiny_model_folder), trees=40, seed=7)
    assert not result.ok and not result.changed and len(result.misjudged) > 5
