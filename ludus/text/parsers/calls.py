"""The core of every format of calls: a reply's text is taken apart as it comes, and what is no call stays content.

Knows: where a call may begin, indices, ids.  Knows not: what stands between the tags; the format reads that.

    text ──opening tag──▶ call ──the format has read it──▶ after ──(blanks before the end or a call eaten)──▶ text
      ▲                    └──BrokenCallError──▶ raw ──its closing tag, or the next opening tag──▶ text
      └──no call after all, in a format whose calls have no opening tag of their own──┘

Blanks between a call and its neighbours belong to the call. A call is heard of when the format is certain of its head;
what breaks later is taken back by `ToolCallBroken`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from ludus.text.parsers.answer import AnswerGrammar
from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    StreamParser,
    ToolCallBroken,
    ToolCallDelta,
    ToolParser,
    call_id,
    first_of,
    held_length,
)
from ludus.text.parsers.lark import CallGrammar
from ludus.text.parsers.plain import plain_parser
from ludus.text.parsers.reasoning import ReasoningSplitter
from ludus.text.parsers.text_reader import BrokenCallError, TextReader
from ludus.types import ToolSpec

Reading = Generator[None, None, None]
MakeId = Callable[[str, int], str]
"""(call_seed, index)"""


@dataclass(eq=False)
class CallWriter:
    """What a format finds of the calls it reads, as deltas, in order."""

    reader: TextReader
    deltas: list[Delta]
    call_seed: str
    make_id: MakeId
    num_done: int = 0
    """Calls that were read to their end."""
    done_at: int = 0
    """Where in the text the last of them ended."""
    is_sure: bool = False
    """What is being read is meant as a call, if perhaps a broken one."""
    _num_begun: int = 0
    _is_open: bool = False

    def begin(self, name: str, own_id: str | None = None) -> None:
        """A call's head is certain. own_id: the id that the model itself wrote."""
        index = self._num_begun
        self._num_begun += 1
        self._is_open = self.is_sure = True
        self.deltas.append(ToolCallDelta(index, own_id or self.make_id(self.call_seed, index), name, ""))

    def arguments(self, text: str) -> None:
        """More of the open call's arguments."""
        index, last = self._num_begun - 1, self.deltas[-1] if self.deltas else None
        if isinstance(last, ToolCallDelta) and last.index == index and last.name is None:
            self.deltas[-1] = ToolCallDelta(index, None, None, last.arguments + text)
        else:
            self.deltas.append(ToolCallDelta(index, None, None, text))

    def done(self) -> None:
        """The open call is complete."""
        self.num_done += 1
        self.done_at = self.reader.at
        self._is_open = False

    def break_off(self) -> None:
        """What is being read is no call."""
        if self._is_open:
            self.deltas.append(ToolCallBroken(self._num_begun - 1))
            self._is_open = False


ReadCalls = Callable[[TextReader, str, CallWriter, Sequence[ToolSpec]], Reading]
"""(reader, opener, calls, tools): reads what follows `opener` ('': the start of an answer), closing tags included;
raises BrokenCallError."""


@dataclass(frozen=True)
class CallFormat:
    """How one family of models writes calls."""

    name: str
    opens: Mapping[str, tuple[str, ...]]
    """Tags that open calls, the outermost first; each with the tags that end such a call if it is broken."""
    read: ReadCalls
    grammar: CallGrammar
    """How this model writes a call; it may read more ways than it writes."""
    markers: tuple[str, ...]
    """All its tags that may be special tokens."""
    stop_after_call: tuple[str, ...] = ()
    """As in `ToolParser`."""
    starts: str = ""
    """Characters of which one, at the start of an answer, may begin a call without a tag. '': there are none."""
    make_id: MakeId = call_id
    """Of a call to which the model gave no id."""


def call_parser(call_format: CallFormat, *, splits_reasoning: bool = False) -> ToolParser:
    """Reads the calls of one format, after the thinking is split off."""
    plain = plain_parser(splits_reasoning=splits_reasoning)

    def stream(*, in_reasoning: bool = False, call_seed: str = "", tools: Sequence[ToolSpec] = ()) -> StreamParser:
        splitter = ReasoningSplitter(enabled=splits_reasoning, in_reasoning=in_reasoning)
        return _CallStream(call_format, splitter, call_seed, tools)

    return ToolParser(
        call_format.name,
        stream,
        AnswerGrammar(call_format.grammar, splits_reasoning, starts=call_format.starts).reply,
        call_format.markers + plain.markers,
        call_format.stop_after_call,
        plain,
    )


class _CallStream:
    def __init__(
        self, call_format: CallFormat, splitter: ReasoningSplitter, call_seed: str, tools: Sequence[ToolSpec]
    ) -> None:
        self._format = call_format
        self._splitter = splitter
        self._tools = tools
        self._deltas: list[Delta] = []
        self._reader = TextReader()
        self._calls = CallWriter(self._reader, self._deltas, call_seed, call_format.make_id)
        self._step: Callable[[], bool] = self._read_start if call_format.starts else self._read_text
        self._reading: Reading | None = None
        """None: no call was begun yet."""
        self._opener = ""
        self._blanks = ""
        """Blanks before the opening tag; content only if the call breaks."""
        self._opened_at = 0
        """Where the text behind the opening tag begins."""
        self._num_done_before = 0
        self._raw = ""
        """What of a broken call has left so far, blanks before it not included."""
        self._undecoded: list[str] = []

    @property
    def undecoded(self) -> tuple[str, ...]:
        return tuple(self._undecoded)

    def feed(self, text: str) -> list[Delta]:
        deltas, answer = self._splitter.feed(text)
        return deltas + self._read(answer, is_last=False)

    def finish(self) -> list[Delta]:
        deltas, answer = self._splitter.finish()
        return deltas + self._read(answer, is_last=True)

    def _read(self, answer: str, *, is_last: bool) -> list[Delta]:
        self._reader.text += answer
        self._reader.is_last = is_last
        while self._step():
            pass
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas

    # Each step reads what it can decide and returns whether another is next.

    def _read_start(self) -> bool:
        rest = self._reader.rest
        begun = rest.lstrip()
        if not begun and not self._reader.is_last:
            return False
        if begun and begun[0] in self._format.starts:
            self._enter_call(rest[: len(rest) - len(begun)], "")
        else:
            self._step = self._read_text
        return True

    def _read_text(self) -> bool:
        rest = self._reader.rest
        found, opener = first_of(rest, tuple(self._format.opens))
        if found >= 0:
            body = rest[:found].rstrip()
            self._say(body)
            self._reader.at += len(body)
            self._enter_call(rest[len(body) : found], opener)
            return True
        held = 0 if self._reader.is_last else held_length(rest, *self._format.opens)
        certain = rest if self._reader.is_last else rest[: len(rest) - held].rstrip()
        self._say(certain)
        self._reader.at += len(certain)
        self._reader.forget()
        return False

    def _enter_call(self, blanks: str, opener: str) -> None:
        self._reader.at += len(blanks) + len(opener)
        self._blanks, self._opener, self._opened_at = blanks, opener, self._reader.at
        self._num_done_before = self._calls.num_done
        self._calls.is_sure = opener != ""
        self._reading = self._format.read(self._reader, opener, self._calls, self._tools)
        self._step = self._read_call

    def _read_call(self) -> bool:
        assert self._reading is not None, "a call is read after it was entered"
        try:
            next(self._reading)
        except StopIteration:
            is_read = self._calls.num_done > self._num_done_before
        except BrokenCallError:
            is_read = False
        else:
            return False
        if is_read:
            self._step = self._read_after
        else:
            self._break_call()
        return True

    def _break_call(self) -> None:
        """Go back to where the broken call began, and let its tag out as content."""
        self._calls.break_off()
        self._step = self._read_raw
        self._raw = ""
        if self._calls.num_done > self._num_done_before:  # one of several behind one tag, which had its effect
            self._reader.at = self._calls.done_at
        elif self._calls.is_sure:
            self._reader.at = self._opened_at
            self._say(self._blanks + self._opener)
            self._raw = self._opener
        else:
            self._reader.at = self._opened_at - len(self._blanks)
            self._step = self._read_text

    def _read_raw(self) -> bool:
        rest, tags = self._reader.rest, tuple(self._format.opens)
        ends = self._format.opens.get(self._opener, ())
        # A tag that may stand inside the broken call does not end it.
        openers = tags[: tags.index(self._opener) + 1] if self._opener else tags
        end, end_tag = first_of(rest, ends)
        next_at, _ = first_of(rest, openers)
        found = [at for at in (end + len(end_tag) if end >= 0 else -1, next_at) if at >= 0]
        free = len(rest) if self._reader.is_last else len(rest) - held_length(rest, *ends, *openers)
        cut = min(found, default=free)
        self._raw += rest[:cut]
        self._say(rest[:cut])
        self._reader.at += cut
        self._reader.forget()
        if not found and not self._reader.is_last:
            return False
        if self._raw:
            self._undecoded.append(self._raw)
        self._step = self._read_text
        return True

    def _read_after(self) -> bool:
        """Eat the blanks if the end follows; those before another call are eaten with it."""
        if not self._reader.rest.strip():
            if self._reader.is_last:
                self._reader.at = len(self._reader.text)
            return False
        self._step = self._read_text
        return True

    def _say(self, text: str) -> None:
        if not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, ContentDelta):
            self._deltas[-1] = ContentDelta(last.text + text)
        else:
            self._deltas.append(ContentDelta(text))
