"""Turns sampled tokens into a message, delta by delta, while they are sampled.

Knows: decoding, stop strings, the parser of tool calls and reasoning.  Knows not: engines, prompts, sessions.
Invariant: no delta ever has to be taken back: a character waits for its last token, and text that may be the beginning
of a stop string waits until it is not one. The reply ends before the stop string and the stop token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, StreamParser, ToolCallDelta, collect
from ludus.text.stream import Detokenizer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Message, Sampling


class ReplyStream:
    """A growing answer: feed it tokens, get deltas, and at the end the message that the deltas add up to."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, parser: StreamParser, *, markers: Collection[str] = ()
    ) -> None:
        """markers: special tokens that `parser` must see as text. Tokens that end a turn are always left out."""
        self._silent_ids = tokenizer.stop_ids.union(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer, shown=markers)
        self._cutter = StopCutter(sampling.stop)
        self._parser = parser
        self._deltas: list[Delta] = []

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """The deltas that these tokens add for certain."""
        spoken = [token for token in token_ids if token not in self._silent_ids]
        return self._pass_on(self._cutter.feed(self._detokenizer.feed(spoken)))

    def finish(self) -> list[Delta]:
        """The deltas that were held back. Call this once, after the last token."""
        deltas = self._pass_on(self._cutter.feed(self._detokenizer.finish()) + self._cutter.finish())
        last = self._parser.finish()
        self._deltas += last
        return deltas + last

    @property
    def undecoded(self) -> tuple[str, ...]:
        """Raw texts, so far, that began as a tool call but could not be decoded."""
        return self._parser.undecoded

    def message(self) -> Message:
        """The reply that all deltas so far add up to."""
        parsed = collect(self._deltas)
        return Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls)

    def _pass_on(self, text: str) -> list[Delta]:
        deltas = self._parser.feed(text) if text else []
        self._deltas += deltas
        return deltas


class StopCutter:
    """Passes text on up to the first stop string, and never a part of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._is_cut = False

    def feed(self, text: str) -> str:
        """The text that is certainly before any stop string."""
        if self._is_cut:
            return ""
        self._held += text
        found = [idx for idx in map(self._held.find, self._stops) if idx >= 0]
        if found:
            self._is_cut = True
            free, self._held = self._held[: min(found)], ""
            return free
        num_held = self._num_held()
        free, self._held = self._held[: len(self._held) - num_held], self._held[len(self._held) - num_held :]
        return free

    def finish(self) -> str:
        """The text that was held back because it could have been a stop string."""
        held, self._held = self._held, ""
        return held

    def _num_held(self) -> int:
        """Length of the longest suffix of the text that is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for num in range(min(longest, len(self._held)), 0, -1):
            if self._held.endswith(tuple(stop[:num] for stop in self._stops if len(stop) > num)):
                return num
        return 0


def replay(message: Message) -> list[Delta]:
    """The deltas of a finished message, for a retry of its request."""
    deltas: list[Delta] = []
    if message.reasoning is not None:
        deltas.append(ReasoningDelta(message.reasoning))
    if message.content is not None:
        deltas.append(ContentDelta(message.content))
    for idx, call in enumerate(message.tool_calls):
        deltas.append(ToolCallDelta(idx, call.id, call.name, call.arguments))
    return deltas
