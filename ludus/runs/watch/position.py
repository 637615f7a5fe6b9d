"""How far a run is, which tells whether what a client has read of it is still all there is.

Knows: its text form, the id of an event.  Knows not: runs, events.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_TEXT = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})\.([a-z]{0,20})")


class Position(NamedTuple):
    """How far a run is."""

    num_lines: int
    """Of metrics."""
    num_episodes: int
    state: str

    def __str__(self) -> str:
        return f"{self.num_lines}.{self.num_episodes}.{self.state}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None: the text is not that of a position."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])
