"""What judges answer: ids, numbers, ranges, and everything that is not JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.rewards.judge.scores import UnusableError, read_scores


def entry(attempt_id: Any, score: Any, **more: Any) -> dict[str, Any]:
    return {"trajectory_id": attempt_id, "explanation": f"of {attempt_id}", "score": score, **more}


def answer(*entries: Any) -> str:
    return json.dumps({"scores": list(entries)})


def test_scores_belong_to_ids_in_any_order() -> None:
    """A judge that answers best first rewards nobody else for it."""
    verdict = read_scores(answer(entry("3", 1), entry("1", 0), entry("2", 0.5)), ["1", "2", "3"], is_last=False)
    assert {name: each.score for name, each in verdict.attempt_scores.items()} == {
        "1": 0.0,
        "2": 0.5,
        "3": 1.0,
    }
    assert verdict.attempt_scores["3"].explanation == "of 3"


@pytest.mark.parametrize(
    "text",
    [
        answer(entry(1, "0.5")),
        answer(entry(" 1 ", 0.5, confidence="high")),
        f"Here you are:\n```json\n{answer(entry('1', 0.5))}\n```\nDone.",
        f"I think {answer(entry('1', 0.5))}.",
        f"The set {{a, b}} is {{}}: {answer(entry('1', 0.5))}, so {{done}}.",
        answer({"trajectory_id": "1", "score": 0.5}),
    ],
)
def test_what_can_be_understood_is(text: str) -> None:
    """Numbers as ids or texts, fences, prose with braces around it, no explanation."""
    assert read_scores(text, ["1"], is_last=False).attempt_scores["1"].score == 0.5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a JSON object with a list called 'scores'"),
        ("I cannot judge that.", "not a JSON object"),
        ('{"scores": [{"trajectory_id": "1", "sco', "not a JSON object"),
        ('[{"trajectory_id": "1", "score": 1}]', "not a JSON object"),
        ('{"scores": {"1": 0.5}}', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        (answer(0.5), "0.5 is no entry"),
        (answer({"score": 1}), "is no entry"),
        (answer(entry("1", "good")), "the score 'good' of trajectory '1' is not a number"),
        (answer(entry("1", None)), "is not a number"),
        (answer(entry("1", int("9" * 400))), "is not a number"),
        ('{"scores": [{"trajectory_id": "1", "score": ' + "9" * 5000 + "}]}", "not a JSON object"),
        ('{"scores": [{"trajectory_id": "1", "score": NaN}]}', "is not a number"),
        (answer(entry("7", 0.5)), "there is no trajectory '7'; there are 1, 2"),
        (answer(entry("1", 0.5), entry("1", 0.6)), "trajectory '1' was scored twice"),
        (answer(entry("1", 0.5)), "there is no score of trajectory 2"),
        (answer(), "there is no score of trajectory 1, 2"),
        (answer(entry("1", 7), entry("2", 0.5)), "the score 7 of trajectory '1' is not from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_complained_of(text: str, complaint: str) -> None:
    """The complaint says what is wrong, so that the judge can do better."""
    with pytest.raises(UnusableError) as raised:
        read_scores(text, ["1", "2"], is_last=False)
    assert complaint in str(raised.value)


def test_scores_out_of_range_can_be_clamped() -> None:
    """They end at 0 and 1, and are counted."""
    verdict = read_scores(answer(entry("1", 150), entry("2", -3), entry("3", 1.0)), ["1", "2", "3"], is_last=True)
    assert [verdict.attempt_scores[name].score for name in ("1", "2", "3")] == [1.0, 0.0, 1.0]
    assert verdict.num_clamped == 2


@pytest.mark.parametrize(
    ("scores", "read", "top"),
    [
        # One score clearly above 1 is enough: the others may be low on the same scale.
        ((7, 9, 0), (0.7, 0.9, 0.0), 10.0),
        ((1, 1, 9, 0), (0.1, 0.1, 0.9, 0.0), 10.0),
        ((10, 1), (1.0, 0.1), 10.0),
        ((2, 1, 0), (0.2, 0.1, 0.0), 10.0),
        ((0.5, 10), (0.05, 1.0), 10.0),
        ((70, 95, 10), (0.7, 0.95, 0.1), 100.0),
        ((0, 1, 85), (0.0, 0.01, 0.85), 100.0),
        # Below the scale is its end.
        ((9, 5, -1), (0.9, 0.5, 0.0), 10.0),
        # A slip, even of several.
        ((0.3, 0.9, 1.05), (0.3, 0.9, 1.0), 1.0),
        ((0.3, 1.2, 1.1), (0.3, 1.0, 1.0), 1.0),
        ((0.3, -0.1), (0.3, 0.0), 1.0),
        # On no scale.
        ((700, 900, 0), (1.0, 1.0, 0.0), 1.0),
        ((0, 1), (0.0, 1.0), 1.0),
    ],
)
def test_a_scale_of_ones_own(scores: Sequence[float], read: Sequence[float], top: float) -> None:
    """Who keeps to tens or hundreds is read on that scale, so that the order stays; a slip is moved to the end."""
    ids = [str(number) for number in range(1, len(scores) + 1)]
    written = answer(*(entry(name, score) for name, score in zip(ids, scores, strict=True)))
    verdict = read_scores(written, ids, is_last=True)
    assert [verdict.attempt_scores[name].score for name in ids] == pytest.approx(list(read))
    assert verdict.top == top


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=2, max_size=8))
def test_a_scale_keeps_the_judges_order(scores: list[float]) -> None:
    """No two attempts change places, and above the slip none becomes another's equal."""
    ids = [str(number) for number in range(1, len(scores) + 1)]
    written = answer(*(entry(name, score) for name, score in zip(ids, scores, strict=True)))
    verdict = read_scores(written, ids, is_last=True)
    read = [verdict.attempt_scores[name].score for name in ids]
    for one, ours in zip(scores, read, strict=True):
        assert not any(one < other and ours > theirs for other, theirs in zip(scores, read, strict=True))
    if max(scores) > 1.2:
        assert read == pytest.approx([score / verdict.top for score in scores])
