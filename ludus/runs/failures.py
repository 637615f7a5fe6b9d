"""Groups failed episodes by what went wrong.

Knows: outcomes and their reasons.  Knows not: who played, where they are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ludus.runs.view import printable
from ludus.types import Episode, OutcomeKind

KINDS: tuple[OutcomeKind, ...] = ("failed", "timeout", "lost")
"""Outcomes that count as failures: nothing is learned from such episodes, and nobody intended it."""
MOST_KINDS = 20  # of failures that are listed: enough to see what is wrong
MOST_CHARS = 160  # of a reason in one line: a long message of an exception, and no page of HTML
# What differs between episodes that fail alike: numbers, addresses, ids.
_OWN = re.compile(r"0x[0-9a-f]+|\b(?=[0-9a-f-]*\d)[0-9a-f-]{8,}\b|\d+(?:\.\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """All episodes that failed in the same way."""

    outcome: OutcomeKind
    reason: str
    """The reason of the first episode, in one line."""
    count: int
    first: str
    """Id of the first episode."""
    trace: str
    """The traceback of the first episode: the last frames of the user's own code, and the error."""

    def __str__(self) -> str:
        return f"{self.count} x {self.outcome}: {self.reason}"


def kind_of(reason: str) -> str:
    """The reason without what differs between similar failures, such as numbers and ids."""
    return _OWN.sub("#", line_of(reason))


class Failures:
    """Counts failures by kind."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Episode] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, episode: Episode) -> None:
        """Count the episode if it failed."""
        if episode.outcome.kind not in KINDS:
            return
        alike = (episode.outcome.kind, kind_of(episode.outcome.reason))
        self._first.setdefault(alike, episode)
        self._counts[alike] = self._counts.get(alike, 0) + 1

    def groups(self) -> tuple[Failure, ...]:
        """The failures, most frequent first."""
        found = [
            Failure(
                first.outcome.kind, line_of(first.outcome.reason), self._counts[alike], first.id, first.outcome.reason
            )
            for alike, first in self._first.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.count))


def failure_lines(failures: Sequence[Failure], *, num_episodes: int | None = None, most: int = MOST_KINDS) -> list[str]:
    """A sentence, a line for each of the first `most` groups, and one for the others. Empty: no failures.

    num_episodes: in total. None: unknown.
    """
    if not failures:
        return []
    total, of = sum(each.count for each in failures), "" if num_episodes is None else f" of {num_episodes:,}"
    lines = [f"{total:,}{of} episodes ended badly:", *(f"  {printable(str(each))}" for each in failures[:most])]
    if rest := failures[most:]:
        lines.append(f"  {sum(each.count for each in rest):,} x something else, of {len(rest):,} kinds")
    return lines


def line_of(reason: str) -> str:
    """The error itself, which is the last line of a traceback."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason is known")[:MOST_CHARS]
