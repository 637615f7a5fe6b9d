"""What agents return becomes rewards of turns, or an outcome that names the mistake."""

from __future__ import annotations

import decimal
import fractions
import re
from typing import Any

import numpy
import pytest

from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.reward import Result
from ludus.episodes.spec import SessionSpec
from ludus.types import Episode, Message, Sampled, Sampling, SessionRecord, StopReason, Turn


def turn(turn_id: str, follows: str | None, stop_reason: StopReason = "stop") -> Turn:
    return Turn(
        id=turn_id,
        node=0,
        prefix=None,
        follows=follows,
        fork=None,
        messages=(),
        reply=Message("assistant", ""),
        sampled=Sampled((1,), (-1.0,), (0,), stop_reason),
        sampling=Sampling(),
    )


def score_episode(returned: object, turns: tuple[Turn, ...]) -> Episode:
    return finish(SessionSpec(), SessionRecord("s", (), turns), Returned(returned), started_at=0.0)


TURNS = (turn("a", None), turn("b", "a"))


@pytest.mark.parametrize(
    "number",
    [
        1,
        1.0,
        True,
        numpy.float32(1),
        numpy.int64(1),
        numpy.bool_(True),
        numpy.array(1.0),
        decimal.Decimal(1),
        fractions.Fraction(1),
    ],
)
def test_any_real_number_is_a_reward_of_the_last_turn(number: Any) -> None:
    """int, float, bool, numpy scalars, Decimal and Fraction are all numbers."""
    scored = score_episode(number, TURNS)
    assert scored.outcome.kind == "ok"
    assert scored.rewards == {"b": 1.0}


def test_a_mapping_rewards_turns_by_completion_id() -> None:
    """Only the turns named get a reward; zero is a reward."""
    assert score_episode({"a": 0, "b": 0.5}, TURNS).rewards == {"a": 0.0, "b": 0.5}


def test_a_turn_may_be_named_as_any_protocol_shows_it() -> None:
    """The digits name the turn, whatever stands before them."""
    turns = (turn("chatcmpl-1", None), turn("chatcmpl-2", "chatcmpl-1"))
    scored = score_episode({"resp_1": 1.0, "msg_2": 2.0}, turns)
    assert scored.rewards == {"chatcmpl-1": 1.0, "chatcmpl-2": 2.0}


def test_a_result_carries_metrics_and_metadata() -> None:
    """Result, and a tuple for agents that import only their SDK, say more than a reward."""
    scored = score_episode(Result(1, {"success": True}, {"note": "x"}), TURNS)
    assert (scored.metrics, scored.metadata) == ({"success": 1.0}, {"note": "x"})
    assert score_episode(({"a": 1}, {"success": 0}), TURNS).metrics == {"success": 0.0}


def test_none_rejects_the_episode() -> None:
    """None says: do not train on this."""
    assert score_episode(None, TURNS).outcome.kind == "rejected"
    assert score_episode(Result(None, {"success": 0}), ()).metrics == {"success": 0.0}


def test_an_aborted_turn_is_never_rewarded_by_a_bare_number() -> None:
    """The number goes to the last turn whose answer the agent saw."""
    scored = score_episode(1.0, (*TURNS, turn("c", "b", "abort")))
    assert scored.rewards == {"b": 1.0}


@pytest.mark.parametrize(
    ("returned", "turns", "reason"),
    [
        (float("nan"), TURNS, "the reward is nan; it must be a finite number"),
        ({"b": float("inf")}, TURNS, "the reward of completion 'b' is inf"),
        ("1.0", TURNS, "the reward is '1.0' of type str"),
        ([1.0], TURNS, r"the reward is \[1.0\] of type list"),
        ({"zzz": 1.0}, TURNS, "unknown completion id 'zzz'; allowed: a, b"),
        ({"b": "high"}, TURNS, "the reward of completion 'b' is 'high'"),
        (1.0, (), "the agent never called the model"),
        (1.0, (turn("a", None, "abort"),), "every call was aborted"),
        (Result(1.0, {"success": "yes"}), TURNS, "the metric 'success' is 'yes'"),
        (Result(1.0, 3), TURNS, "the metrics the agent returned must be a mapping"),  # type: ignore[arg-type]
        (numpy.ones(3), TURNS, "is not one number"),
        ((1, 2, 3, 4), TURNS, "a tuple of 4 values"),
    ],
)
def test_what_is_no_reward_fails_the_episode_by_name(returned: object, turns: tuple[Turn, ...], reason: str) -> None:
    """NaN, infinities, wrong types, unknown ids and an agent that never called the model are failures, named."""
    outcome = score_episode(returned, turns).outcome
    assert outcome.kind == "failed"
    assert re.search(reason, outcome.reason), outcome.reason


def test_the_reward_of_the_episode_is_what_was_returned() -> None:
    """A bare number is the episode's reward however many roots it is credited to; a mapping's is its sum."""
    asked_thrice = (turn("a", None), turn("b", None), turn("c", None))
    scored = score_episode(0.5, asked_thrice)
    assert scored.rewards == {"a": 0.5, "b": 0.5, "c": 0.5} and scored.reward == 0.5
    assert score_episode({"a": 0.5, "c": 0.25}, asked_thrice).reward == 0.75
    assert score_episode({}, asked_thrice).reward is None
    assert score_episode(None, asked_thrice).reward is None
