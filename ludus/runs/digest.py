"""A run as a page of Markdown: results, problems, and what became of its tokens.

Knows: what the live page asks of a run.  Knows not: files, who shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ludus.runs.view import encodable
from ludus.runs.watch.run import WatchedRun

_COMPARED = ("success", "reward")
"""Values in the summary that are compared before and after training."""
_COURSES = (
    "rollout/reward",
    "rollout/success",
    "eval/reward",
    "eval/success",
    "train/loss",
    "train/entropy",
    "train/kl",
    "train/logprob_gap_mean",
    "rollout/tokens_per_s",
    "time/step_s",
)


def digest(run: WatchedRun) -> str:
    """The run as it is now, in Markdown that GitHub and all trackers with Markdown understand."""
    about, ledger = run.overview(), run.ledger()
    steps = about["steps"][-1] if about["steps"] else 0
    facts = [about["state"], f"{steps:,} steps", about["algorithm"]["name"]]
    summary = about["summary"] or {}
    masked = sorted(ledger["masked"].items(), key=lambda item: -item[1])
    shares = [("trained", ledger["trained"]), *((name.replace("_", " "), count) for name, count in masked)]
    parts = [
        f"# {_plain(about['name'])}",
        ", ".join(_plain(str(fact)) for fact in facts if fact),
        *_section("Held-out rows", _table(("", "before", "after"), _compared(summary))),
        *_section("Curves", _table(("", "first", "last"), _courses(run))),
        *_section("What is to be looked at", [f"- {_plain(each['text'])}" for each in run.health()["findings"]]),
        *_section("Where tokens went", _table(("", "tokens"), [(name, f"{n:,}") for name, n in shares if n])),
        *_section("Ended badly", [_failure(each) for each in run.failures()["failures"]]),
        *_section("Damaged", [f"- {_plain(each)}" for each in about["damage"]]),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(lines)] if lines else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_row(row) for row in rows]
    return [_row(head), _row(["---", *("---:" for _ in head[1:])]), *lines] if lines else []


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _compared(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = ((name, summary.get(f"{name}_before"), summary.get(f"{name}_after")) for name in _COMPARED)
    return [(name, _number(before), _number(after)) for name, before, after in found if (before, after) != (None, None)]


def _courses(run: WatchedRun) -> list[tuple[str, str, str]]:
    found = ((name, run.curves.points(name)) for name in _COURSES)
    return [(name, _number(points[0][1]), _number(points[-1][1])) for name, points in found if points]


def _failure(failure: Mapping[str, Any]) -> str:
    return f"- {failure['count']:,} x {failure['outcome']}: {_plain(failure['reason'] or 'no reason is known')}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _plain(text: str) -> str:
    """The text in one line, with Markdown and HTML escaped and lone surrogates replaced."""
    words = " ".join(encodable(text).split())
    return "".join(f"\\{sign}" if sign in r"\`*_{}[]<>#|~!" else sign for sign in words)
