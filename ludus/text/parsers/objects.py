"""A call as one JSON object: `{"name": …, "arguments": {…}}`, its keys in any order.

Knows: the object.  Knows not: what stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.text_reader import BrokenCallError, TextReader, checked_name

ARGUMENT_KEYS = ("arguments", "parameters")
"""The second is Llama's; models that were trained on one sometimes write the other."""
_OWN_KEYS = ("name", *ARGUMENT_KEYS)


@dataclass(eq=False)
class ObjectReader:
    """One call object.

    The call begins when its name is known and its arguments have begun as an object; arguments that come before the
    name wait for it.
    """

    reader: TextReader
    calls: CallWriter
    reads_id: bool = False
    _name: str | None = None
    _id: str | None = None
    _early: list[str] = field(default_factory=list)
    """Arguments that came before the name."""
    _has_arguments: bool = False

    def read(self) -> Reading:
        """Read the object that stands here, which is a whole call; raises BrokenCallError."""
        reader = self.reader
        yield from reader.need("{")
        yield from reader.skip()
        if not (yield from reader.take("}")):
            while True:
                yield from self._field()
                yield from reader.skip()
                if (yield from reader.need(",", "}")) == "}":
                    break
                yield from reader.skip()
        if self._name is None:
            raise BrokenCallError
        if not self._has_arguments or self._early:
            self.calls.begin(self._name, self._id)
            self.calls.arguments("".join(self._early) or "{}")
        self.calls.done()

    def _field(self) -> Reading:
        key = yield from self._text()
        yield from self.reader.skip()
        yield from self.reader.need(":")
        yield from self.reader.skip()
        if key == "name" and self._name is None:
            self.calls.is_sure = True
            self._name = checked_name((yield from self._text()))
        elif key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            yield from self._arguments()
        elif key in _OWN_KEYS:
            raise BrokenCallError  # given twice: which of them counts?
        elif key == "id" and self.reads_id and (yield from self.reader.peek()) == '"':
            self._id = checked_name((yield from self._text()))
        else:
            yield from self.reader.json(lambda _: None)

    def _arguments(self) -> Reading:
        if self._name is None:
            yield from self.reader.json_object(self._early.append)
        else:
            yield from read_arguments(self.reader, self.calls, self._name, self._id)

    def _text(self) -> Generator[None, None, str]:
        """The JSON string that stands here."""
        if (yield from self.reader.peek()) != '"':
            raise BrokenCallError
        parts: list[str] = []
        yield from self.reader.json(parts.append)
        return str(json.loads("".join(parts)))


def read_each(
    reader: TextReader, tag: str, read_one: Callable[[], Reading], close: str, *, is_open: bool = False
) -> Reading:
    """Read calls that begin with `tag` each, and `close` if it follows. is_open: the first `tag` was taken."""
    while is_open or (yield from reader.after_blanks(tag)):
        is_open = False
        yield from read_one()
    yield from reader.after_blanks(close)


def read_arguments(reader: TextReader, calls: CallWriter, name: str, own_id: str | None = None) -> Reading:
    """Begin the call of `name` with the object that stands here; raises BrokenCallError where there is none."""
    if (yield from reader.peek()) != "{":
        raise BrokenCallError
    calls.begin(name, own_id)
    yield from reader.json_object(calls.arguments)
