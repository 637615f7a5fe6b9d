"""Where prompts forked in a run: how often for each reason, and one example of each.

Knows: the run store, a function that turns ids into text.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ludus.runs.store import RunStore
from ludus.runs.view import Decode
from ludus.text.prefix_memo import around_difference
from ludus.types import SessionRecord, Turn

_PREFIX, _SUFFIX = "rollout/fork_", "_turns"
_CONTEXT_CHARS = 80
"""A turn's header and a line of content on each side of the first difference."""


@dataclass(frozen=True, slots=True)
class ForkExample:
    """Two texts where they part."""

    session_id: str
    number: int
    """Of the turn in its episode, from 1."""
    seen: str
    """What the model saw and sampled before."""
    shown: str
    """What it was given instead."""


@dataclass(frozen=True, slots=True)
class ForkRow:
    """All forks for one reason."""

    reason: str
    num_turns: int
    example: ForkExample | None
    """None: no episode with one is kept, or its ids cannot be turned into text."""


def view_forks(
    run: RunStore, rows: Sequence[tuple[int, Mapping[str, float]]], decode: Decode | None
) -> tuple[ForkRow, ...]:
    """The reasons for which prompts forked in training, the most frequent first.

    rows: the run's metrics.
    """
    counts: Counter[str] = Counter()
    for _, metrics in rows:
        for name, value in metrics.items():
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                reason = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
                counts[reason] += int(value)
    examples = {} if decode is None else _examples(run, set(counts), decode)
    return tuple(ForkRow(reason, count, examples.get(reason)) for reason, count in counts.most_common())


def fork_examples(
    session: SessionRecord, decode: Decode, *, known: Collection[str] = frozenset()
) -> dict[str, ForkExample]:
    """The first fork of each reason in a session. known: reasons that need none."""
    found: dict[str, ForkExample] = {}
    for number, turn in enumerate(session.turns, start=1):
        if turn.fork is not None and turn.fork not in (*known, *found):
            texts = fork_between(session, turn, decode)
            found |= {} if texts is None else {turn.fork: ForkExample(session.id, number, *texts)}
    return found


def fork_between(session: SessionRecord, turn: Turn, decode: Decode) -> tuple[str, str] | None:
    """Around their first difference, what the model saw and sampled before the turn, and what it was given instead.
    None: nothing came before."""
    before = next((each for each in session.turns if each.id == turn.follows), None)
    if before is None:
        return None
    path_ids = session.path_ids(turn.node)
    prompt_ids = path_ids[: len(path_ids) - len(turn.sampled.token_ids)]
    return around_difference(decode(session.path_ids(before.node)), decode(prompt_ids), _CONTEXT_CHARS)


def _examples(run: RunStore, wanted: set[str], decode: Decode) -> dict[str, ForkExample]:
    """The first fork of each reason, in the order of the episodes; of these, no more are read than it takes."""
    found: dict[str, ForkExample] = {}
    episodes = run.episodes() if wanted else iter(())
    for episode in episodes:
        found |= fork_examples(episode.session, decode, known=found)
        if wanted <= found.keys():
            break
    return found
