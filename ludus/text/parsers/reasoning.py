"""Thinking blocks: `<think>…</think>` at the start of a reply, split off before anything else is read.

Knows: the two tags.  Knows not: tool calls; a call inside the thinking is thinking.

    start ──<think>──▶ thinking ──</think>──▶ answer        (the prompt may have opened the block: start in thinking)
      └──────────── any other text ────────────▲

Newlines beside the tags belong to the tags: templates put them back.
"""

from __future__ import annotations

from typing import Literal

from ludus.text.parsers.base import Delta, ReasoningDelta, held_length
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN


class ReasoningSplitter:
    """Passes the thinking on as deltas and the answer as text."""

    def __init__(self, *, enabled: bool, in_reasoning: bool) -> None:
        self._state: Literal["start", "thinking", "gap", "answer"] = "answer"
        if enabled or in_reasoning:
            self._state = "start"
        self._pending = THINK_OPEN if in_reasoning else ""
        self._began = False

    def feed(self, text: str) -> tuple[list[Delta], str]:
        """Deltas of the thinking, and the text of the answer that follows it."""
        self._pending += text
        deltas: list[Delta] = []
        if self._state == "start":
            self._read_start(deltas)
        if self._state == "thinking":
            self._read_thinking(deltas)
        if self._state == "gap":
            self._pending = self._pending.lstrip("\n")
            if self._pending:
                self._state = "answer"
        if self._state != "answer":
            return deltas, ""
        answer, self._pending = self._pending, ""
        return deltas, answer

    def finish(self) -> tuple[list[Delta], str]:
        """What is left when the reply ends here."""
        deltas, answer = self.feed("")  # the prompt may have opened a block that got no text at all
        rest, self._pending = self._pending, ""
        if self._state == "thinking" and (rest := rest.rstrip("\n")):
            deltas.append(ReasoningDelta(rest))
        return deltas, rest if self._state == "start" else answer

    def _read_start(self, deltas: list[Delta]) -> None:
        seen = self._pending.lstrip()
        if seen.startswith(THINK_OPEN):
            self._state = "thinking"
            self._pending = seen[len(THINK_OPEN) :]
            deltas.append(ReasoningDelta(""))
        elif not THINK_OPEN.startswith(seen):
            self._state = "answer"

    def _read_thinking(self, deltas: list[Delta]) -> None:
        thought, closed, rest = self._pending.partition(THINK_CLOSE)
        if not self._began:
            thought = thought.lstrip("\n")
        # What may be a tag's beginning, and newlines that may stand before one, are not certain.
        num_held = 0 if closed else held_length(thought, THINK_CLOSE)
        certain = thought[: len(thought) - num_held].rstrip("\n")
        if certain:
            self._began = True
            deltas.append(ReasoningDelta(certain))
        if closed:
            self._state = "gap"
            self._pending = rest
        else:
            self._pending = thought[len(certain) :]
