"""The replies of gpt-oss: messages in channels, in OpenAI's harmony format.

Knows: channels and recipients.  Knows not: which tools exist.
Source: the chat template of gpt-oss; https://github.com/openai/harmony, docs/format.md.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{…}

The prompt ends with `<|start|>assistant`, so the first message begins behind it. `analysis` is thinking; a message with
a recipient is a call of it; any other is content. Two messages of one kind get a newline between them.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    StreamParser,
    ToolParser,
    call_id,
)
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import Lark, ReplySpec, framed
from ludus.text.parsers.objects import read_arguments
from ludus.text.parsers.text_reader import BrokenCallError, TextReader, checked_name

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (_END, _CALL, _RETURN)
_NAMESPACE = "functions."
_RECIPIENT = " to="
# A header is short; what goes on so long without a message is text.
_MAX_HEADER_LENGTH = 400
_HEADER = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*(?:<\|channel\|>\s*(?P<channel>\w+))?"
    r"\s*(?:to=(?P<late_to>[^\s<]+))?\s*(?:<\|constrain\|>)?\s*\w*\s*"
)


class _HarmonyStream:
    def __init__(self, call_seed: str, *, reads_calls: bool) -> None:
        self._reads_calls = reads_calls
        self._reader = TextReader()
        self._deltas: list[Delta] = []
        self._calls = CallWriter(self._reader, self._deltas, call_seed, call_id)
        self._undecoded: list[str] = []
        self._has_thought = self._has_content = False
        self._reading = self._read_all()

    @property
    def undecoded(self) -> tuple[str, ...]:
        return tuple(self._undecoded)

    def feed(self, text: str) -> list[Delta]:
        self._reader.text += text
        next(self._reading, None)
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas

    def finish(self) -> list[Delta]:
        self._reader.is_last = True
        return self.feed("")

    def _read_all(self) -> Reading:
        reader = self._reader
        while (yield from reader.peek()):
            reader.forget()
            if (yield from reader.take(_START, _CHANNEL, _RECIPIENT, _MESSAGE)):
                reader.at = 0
                yield from self._read_message()
            else:  # text outside of any message, up to the next one
                tag = yield from reader.copy_all(self._say, _START, _CHANNEL)
                reader.at -= len(tag)

    def _read_message(self) -> Reading:
        try:
            channel, recipient = yield from self._read_header()
            if recipient is not None:
                yield from self._read_call(recipient)
                return
        except BrokenCallError:
            yield from self._read_broken()
            return
        if channel == "analysis":
            self._think("\n" if self._has_thought else "")
            self._has_thought = True
        elif self._has_content:
            self._say("\n")
        say = self._think if channel == "analysis" else self._say
        tag = yield from self._reader.copy_all(say, *_ENDS, _START)
        if tag == _START:
            self._reader.at -= len(tag)

    def _read_header(self) -> Generator[None, None, tuple[str, str | None]]:
        """Channel and recipient of the message that begins here. Raises BrokenCallError if it is no header."""
        header, _ = yield from self._reader.until(lambda text: len(text) <= _MAX_HEADER_LENGTH, _MESSAGE)
        found = _HEADER.fullmatch(header)
        if found is None:
            raise BrokenCallError
        return found["channel"] or "", found["to"] or found["late_to"]

    def _read_call(self, recipient: str) -> Reading:
        if not self._reads_calls:
            raise BrokenCallError
        reader = self._reader
        name = checked_name(recipient.removeprefix(_NAMESPACE))
        yield from reader.skip()
        yield from read_arguments(reader, self._calls, name)
        yield from reader.skip()
        if not (yield from reader.take(*_ENDS)) and (yield from reader.peek()):
            raise BrokenCallError
        self._calls.done()

    def _read_broken(self) -> Reading:
        """Let out the message as it is, up to its end or the next one."""
        self._calls.break_off()
        reader = self._reader
        reader.at = 0
        self._say((yield from reader.take(_START)))
        tag = yield from reader.copy_all(self._say, *_ENDS, _START)
        if tag == _START:
            reader.at -= len(tag)
        else:
            self._say(tag)
        raw = reader.text[: reader.at]
        if self._reads_calls and _RECIPIENT in raw.partition(_MESSAGE)[0]:
            self._undecoded.append(raw)

    def _say(self, text: str) -> None:
        self._has_content = self._has_content or text != ""
        if text:
            self._deltas.append(ContentDelta(text))

    def _think(self, text: str) -> None:
        self._deltas.append(ReasoningDelta(text))


def _reply(lark: Lark, wanted: ReplySpec, _in_reasoning: bool) -> str:
    """Thinking in its channel, then a call or the final message; a call ends the reply, so there is never a second."""
    call = framed(f"{_CHANNEL}commentary{_RECIPIENT}{_NAMESPACE}%s {_CONSTRAIN}json{_MESSAGE}", "")
    bodies = [call(lark, tool) for tool in wanted.tools]
    final = lark.text(f"{_CHANNEL}final{_MESSAGE}")
    before = [f"{_CHANNEL}analysis{_MESSAGE}"]
    if wanted.schema is not None:
        bodies.append(f"{final} {lark.json(wanted.schema)}")
    if wanted.text:
        bodies.append(f"{final} {lark.rule('/(?s:.+)/', is_terminal=True)}?")
        before.append(f"{_CHANNEL}commentary{_MESSAGE}")
    heads = lark.one_of([lark.text(head) for head in before])
    thought = f"{heads} {lark.upto(_END)} {lark.text(f'{_START}assistant')}"
    return f"({thought}){'*' if wanted.text else '?'} {lark.one_of(bodies)}"


def _parser(*, reads_calls: bool) -> ToolParser:
    def stream(*, call_seed: str = "", **_: Any) -> StreamParser:
        return _HarmonyStream(call_seed, reads_calls=reads_calls)

    markers = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)
    return ToolParser("gpt_oss", stream, _reply, markers, stop_after_call=(_CALL,))


GPT_OSS = replace(_parser(reads_calls=True), without_calls=_parser(reads_calls=False))
