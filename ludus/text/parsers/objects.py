"""A call as one JSON object: `{"name": …, "arguments": {…}}`, its keys in any order.

Knows: the object.  Knows not: what stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.text_reader import BrokenCallError, TextReader, checked_name

ARGUMENT_KEYS = ("arguments", "parameters")
"""The second is Llama's; models that were trained on one sometimes write the other."""
_OWN_KEYS = ("name", *ARGUMENT_KEYS)


class ObjectReader:
    """One call object.

    The call begins when its name is known and its arguments have begun as an object; arguments that come before the
    name wait for it.
    """

    def __init__(self, reader: TextReader, calls: CallWriter, *, reads_id: bool = False) -> None:
        self._reader = reader
        self._calls = calls
        self._reads_id = reads_id
        self._name: str | None = None
        self._id: str | None = None
        self._early: list[str] = []
        """Arguments that came before the name."""
        self._has_arguments = False

    def read(self) -> Reading:
        """Read the object that stands here, which is a whole call; raises BrokenCallError."""
        reader = self._reader
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
            self._calls.begin(self._name, self._id)
            self._calls.arguments("".join(self._early) or "{}")
        self._calls.done()

    def _field(self) -> Reading:
        key = yield from self._text()
        yield from self._reader.skip()
        yield from self._reader.need(":")
        yield from self._reader.skip()
        if key == "name" and self._name is None:
            self._calls.is_sure = True
            self._name = checked_name((yield from self._text()))
        elif key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            yield from self._arguments()
        elif key in _OWN_KEYS:
            raise BrokenCallError  # given twice: which of them counts?
        elif key == "id" and self._reads_id and (yield from self._reader.peek()) == '"':
            self._id = checked_name((yield from self._text()))
        else:
            yield from self._reader.json(lambda _: None)

    def _arguments(self) -> Reading:
        if self._name is None:
            yield from self._reader.json_object(self._early.append)
        else:
            yield from read_arguments(self._reader, self._calls, self._name, self._id)

    def _text(self) -> Generator[None, None, str]:
        """The JSON string that stands here."""
        if (yield from self._reader.peek()) != '"':
            raise BrokenCallError
        parts: list[str] = []
        yield from self._reader.json(parts.append)
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
