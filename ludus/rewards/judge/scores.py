"""What a judge answered becomes a score for each attempt, or a complaint that it can be told.

Knows: JSON, ids, the range of scores.  Knows not: prompts, HTTP, rewards.
Invariant: a score that leaves here is from 0 to 1 and belongs to the attempt whose id the judge wrote beside it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

SCALES = (10.0, 100.0)  # what judges keep to who were asked for 0 to 1
SLIP = 1.2  # the most that is a slip of who keeps to 0 to 1; on a scale of tens the next score above 1 is 1.5 or 2


class TrajectoryScore(pydantic.BaseModel):
    """A judge's score of one trajectory."""

    trajectory_id: str
    """Its position in the group, counted from 1."""
    explanation: str
    score: float
    """From 0 to 1."""


class UnusableError(Exception):
    """The answer cannot be used; the message is for the judge to read."""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One usable answer: a score of every attempt that was shown, by id."""

    attempt_scores: Mapping[str, TrajectoryScore]
    num_clamped: int = 0
    """Scores that were out of range and were moved to its end."""
    top: float = 1.0
    """Of the judge's own scale, which the scores were divided by."""


def read_scores(text: str, ids: Sequence[str], *, is_last: bool) -> ScoredAnswer:
    """The verdict in `text` on the attempts `ids`, in whatever order it names them.

    is_last: the judge is not asked again: scores of a scale of tens or hundreds are divided by its top, and what is
    out of range then is moved to its end. Otherwise they make the answer unusable.
    Raises UnusableError.
    """
    attempt_scores: dict[str, TrajectoryScore] = {}
    for entry in _entries(text):
        attempt_id, score, explanation = _fields(entry)
        if attempt_id not in ids:
            raise UnusableError(f"there is no trajectory {attempt_id!r}; there are {', '.join(ids)}")
        if attempt_id in attempt_scores:
            raise UnusableError(f"trajectory {attempt_id!r} was scored twice")
        if not (0.0 <= score <= 1.0 or is_last):
            raise UnusableError(f"the score {score:g} of trajectory {attempt_id!r} is not from 0 to 1")
        attempt_scores[attempt_id] = TrajectoryScore(trajectory_id=attempt_id, explanation=explanation, score=score)
    missing = [attempt_id for attempt_id in ids if attempt_id not in attempt_scores]
    if missing:
        raise UnusableError(f"there is no score of trajectory {', '.join(missing)}")
    top = _top([each.score for each in attempt_scores.values()])
    scaled = {name: each.score / top for name, each in attempt_scores.items()}
    within = {name: min(1.0, max(0.0, score)) for name, score in scaled.items()}
    scores = {name: each.model_copy(update={"score": within[name]}) for name, each in attempt_scores.items()}
    return ScoredAnswer(scores, sum(within[name] != scaled[name] for name in scaled), top)


def _top(scores: Sequence[float]) -> float:
    """Of the scale that they are on: one score clearly above 1 says that the judge did not keep to 0 to 1.

    It is 10 or 100, whichever the highest is within, however low the others are: dividing keeps the judge's order,
    which moving all above 1 to 1 would not. 1 where none is clearly above it, or the highest is on no scale.
    """
    highest = max(scores)
    return 1.0 if highest <= SLIP else next((top for top in SCALES if highest <= top), 1.0)


def _entries(text: str) -> Sequence[Any]:
    for data in _objects(text):
        if isinstance(data.get("scores"), list):
            return list(data["scores"])
    raise UnusableError("it is not a JSON object with a list called 'scores'")


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Every JSON object in the text, outer ones first: alone, fenced, or between prose that may have braces too."""
    decoder = json.JSONDecoder()
    for brace in re.finditer("{", text):
        try:
            yield decoder.raw_decode(text, brace.start())[0]
        except (ValueError, RecursionError):  # ValueError: also of numbers with more digits than Python reads
            continue


def _fields(entry: Any) -> tuple[str, float, str]:
    if not isinstance(entry, Mapping) or "trajectory_id" not in entry or "score" not in entry:
        raise UnusableError(f"{json.dumps(entry)[:100]} is no entry with 'trajectory_id', 'explanation' and 'score'")
    attempt_id = str(entry["trajectory_id"]).strip()
    try:
        score = float(entry["score"])
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise UnusableError(f"the score {entry['score']!r:.100} of trajectory {attempt_id!r} is not a number")
    return attempt_id, score, str(entry.get("explanation") or "")
