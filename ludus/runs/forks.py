"""Where prompts forked: one example of each reason.

Knows: token graphs, a function that turns ids into text.  Knows not: how a fork is decided.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ludus.runs.view import Decode
from ludus.text.prefix_memo import around_difference
from ludus.types import SessionRecord, Turn

_CONTEXT_CHARS = 80
"""A turn's header and a line of content on each side of the first difference."""


@dataclass(frozen=True, slots=True)
class ForkExample:
    """An example of a fork: two texts around their first difference."""

    session_id: str
    number: int
    """Number of the turn in its episode, from 1."""
    seen: str
    """What the model had seen and sampled before."""
    shown: str
    """What the new prompt shows instead."""


def fork_examples(
    session: SessionRecord, decode: Decode, *, known: Collection[str] = frozenset()
) -> dict[str, ForkExample]:
    """The first fork of each reason in a session. known: reasons that need no example."""
    found: dict[str, ForkExample] = {}
    for number, turn in enumerate(session.turns, start=1):
        if turn.fork is not None and turn.fork not in (*known, *found):
            texts = fork_between(session, turn, decode)
            found |= {} if texts is None else {turn.fork: ForkExample(session.id, number, *texts)}
    return found


def fork_between(session: SessionRecord, turn: Turn, decode: Decode) -> tuple[str, str] | None:
    """What the model had seen and sampled before the turn, and what the turn's prompt shows instead, both around their
    first difference. None: nothing came before."""
    before = next((each for each in session.turns if each.id == turn.follows), None)
    if before is None:
        return None
    path_ids = session.path_ids(turn.node)
    prompt_ids = path_ids[: len(path_ids) - len(turn.sampled.token_ids)]
    return around_difference(decode(session.path_ids(before.node)), decode(prompt_ids), _CONTEXT_CHARS)
