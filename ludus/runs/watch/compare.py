"""Compares two runs, or two steps of one run, on the same held-out rows.

Knows: watched runs, means by task.  Knows not: files, HTTP.
Source of the interval: the paired t-interval, Student, "The probable error of a mean" (1908).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from ludus.runs.watch.outline import outline
from ludus.runs.watch.run import Evaluated, WatchedRun

CONFIDENCE = 0.95
FEW = 2
_MOST_NAMED = 20  # steps: a longer list would not be read


def paired(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, Any] | None:
    """Means of both over their common tasks, the difference b - a, and its 95 % confidence interval. None: there are
    fewer than two common tasks.

    a, b: mean over the episodes of each task, so that every task counts once.
    """
    tasks = sorted(a.keys() & b.keys())
    if len(tasks) < FEW:
        return None
    differences = [b[task] - a[task] for task in tasks]
    mean = fmean(differences)
    reach = student_quantile(len(tasks) - 1) * stdev(differences) / math.sqrt(len(tasks))
    return {
        "rows": len(tasks),
        "mean_a": fmean(a[task] for task in tasks),
        "mean_b": fmean(b[task] for task in tasks),
        "difference": mean,
        "interval": [mean - reach, mean + reach],
        "tasks": [{"task_id": task, "a": a[task], "b": b[task]} for task in tasks],
    }


def compare_runs(a: WatchedRun, step_a: int | None, b: WatchedRun, step_b: int | None) -> dict[str, Any]:
    """Both runs and the comparison of their evaluations. step: None: the last step, and the last evaluation."""
    sides, played = [], []
    for run, step in ((a, step_a), (b, step_b)):
        run.curves.update()
        at = step if step is not None else max(run.curves.steps, default=None)
        evaluated = run.evaluated(step)
        numbers = run.curves.at(at) if at is not None else {}
        known = {"step": at, "evaluated_step": None if evaluated is None else evaluated.step}
        sides.append((outline(run.folder, run.id) | known, numbers))
        played.append(evaluated)
    (about_a, numbers_a), (about_b, numbers_b) = sides
    names = sorted(numbers_a.keys() | numbers_b.keys())
    asked = ((a, step_a), (b, step_b))
    missing = [_unplayed(*each) for each, evaluated in zip(asked, played, strict=True) if evaluated is None]
    one, other = played
    found = None if one is None or other is None else paired(one.rewards, other.rewards)
    why_not = " ".join(dict.fromkeys(missing)) or (
        "There is nothing to pair: fewer than two held-out rows were played by both. Compare runs with the same "
        "valid_dataset."
    )
    return {
        "a": about_a,
        "b": about_b,
        "metrics": [{"name": name, "a": numbers_a.get(name), "b": numbers_b.get(name)} for name in names],
        "paired": found,
        "why_not": None if found is not None else why_not,
        "notes": [] if one is None or other is None else _notes((a, one), (b, other)),
    }


def _notes(*sides: tuple[WatchedRun, Evaluated]) -> list[str]:
    """What the pairs do not show: sentences."""
    (a, played_a), (b, played_b) = sides
    notes = []
    if a.held_out != b.held_out:
        notes.append(
            f"{a.id} and {b.id} name different held-out rows (valid_dataset). Rows are paired by their numbers: see "
            "that row 0 of one is row 0 of the other."
        )
    for run, played in sides:
        if played.num_unrewarded:
            notes.append(
                f"{run.id} at step {played.step}: episodes without a reward, because they failed or were rejected: "
                f"{played.num_unrewarded:,} of {played.num_episodes:,}. A row's mean is that of its others; rows "
                f"without any are left out: {len(played.unrewarded):,}."
            )
    known = [played.rewards.keys() | played.unrewarded for played in (played_a, played_b)]
    if alone := len(known[0] ^ known[1]):
        notes.append(f"Rows that only one of the two has played are left out: {alone:,}.")
    return notes


def _unplayed(run: WatchedRun, step: int | None) -> str:
    """Why there is no evaluation of the run to compare, and what to do."""
    steps = run.evaluated_steps()
    if not steps:
        return f"{run.id} has no evaluation: a run plays held-out rows if it has a valid_dataset."
    known = ", ".join(map(str, steps[-_MOST_NAMED:]))
    return f"{run.id} has no evaluation of step {step}. Choose one of the steps {known}."


def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t distribution: t such that P(|T| <= t) = confidence."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _student_within(t: float, freedom: int) -> float:
    """P(|T| <= t). Source: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for number in range(3 if is_odd else 2, freedom + 1, 2):
        total += term
        term *= square * ((number - 1) / number)
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
