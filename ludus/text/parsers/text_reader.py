"""The text of one answer as it comes, and the ways in which a format reads it.

Knows: text, tags, JSON.  Knows not: which format reads it, what it finds.

A format reads as if the text were complete: every method is a generator that yields wherever it needs more text, and is
resumed when there is more, or when there will be none. What it returns depends on the text alone, never on the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from ludus.text.parsers.base import first_of, held_length
from ludus.text.parsers.scan import JsonScan, NotJsonError

Say = Callable[[str], None]
"""Takes text that is certain."""

MAX_NAME_LENGTH = 256
"""Of a tool or an argument; APIs allow 64. What is longer is no name, and the call is broken before it ends."""

_BLANKS = " \t\r\n"


class BrokenCallError(Exception):
    """What stands here is no call of this format."""


class TextReader:
    """Text that grows at its end and is read once from its start."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """Where reading stands in `text`."""
        self.is_last = False
        """Nothing more will come."""

    @property
    def rest(self) -> str:
        return self.text[self.at :]

    def forget(self) -> None:
        """Drop what was read."""
        self.text, self.at = self.rest, 0

    def peek(self) -> Generator[None, None, str]:
        """The next character, not taken; '' at the end."""
        while self.at >= len(self.text):
            if self.is_last:
                return ""
            yield
        return self.text[self.at]

    def skip(self, chars: str = _BLANKS) -> Generator[None, None, None]:
        """Take blanks, or whatever of `chars` stands here."""
        while (char := (yield from self.peek())) and char in chars:
            self.at += 1

    def take(self, *tags: str) -> Generator[None, None, str]:
        """Take the one of `tags` that stands here, the longest; '' if none does."""
        while True:
            rest = self.text[self.at : self.at + max(map(len, tags))]
            is_open = not self.is_last and any(len(tag) > len(rest) and tag.startswith(rest) for tag in tags)
            if not is_open:
                taken = max((tag for tag in tags if rest.startswith(tag)), key=len, default="")
                self.at += len(taken)
                return taken
            yield

    def need(self, *tags: str) -> Generator[None, None, str]:
        """Like `take`; raises BrokenCallError if none stands here."""
        taken = yield from self.take(*tags)
        if not taken:
            raise BrokenCallError
        return taken

    def after_blanks(self, *tags: str) -> Generator[None, None, str]:
        """Take one of `tags` and the blanks before it; '' and nothing is taken if none follows them."""
        start = self.at
        yield from self.skip()
        taken = yield from self.take(*tags)
        if not taken:
            self.at = start
        return taken

    def stands(self, char: str, *, behind: str = _BLANKS) -> Generator[None, None, bool]:
        """Whether `char` follows characters of `behind`; then they are taken, and it is not."""
        start = self.at
        yield from self.skip(behind)
        if (yield from self.peek()) == char:
            return True
        self.at = start
        return False

    def copy(self, say: Say, *tags: str) -> Generator[None, None, str]:
        """Pass text on until the first of `tags`, and take that. Raises BrokenCallError if none comes.

        Of the tags none may begin another; one may end another.
        """
        tag = yield from self.copy_all(say, *tags)
        if not tag:
            raise BrokenCallError
        return tag

    def copy_all(self, say: Say, *tags: str) -> Generator[None, None, str]:
        """Like `copy`; if none of the tags comes, all of the text is passed on, and '' is returned."""
        while True:
            rest = self.rest
            found, tag = first_of(rest, tags)
            free = found if tag else len(rest) - (0 if self.is_last else held_length(rest, *tags))
            if free:
                say(rest[:free])
            self.at += free + len(tag)
            if tag or self.is_last:
                return tag
            yield

    def until(self, may_be: Callable[[str], bool], *tags: str) -> Generator[None, None, tuple[str, str]]:
        """Text and the one of `tags` that ends it; raises BrokenCallError as soon as what has come may not be it."""
        parts: list[str] = []

        def collect(text: str) -> None:
            parts.append(text)
            if not may_be("".join(parts)):
                raise BrokenCallError

        tag = yield from self.copy(collect, *tags)
        return "".join(parts), tag

    def name(self, *tags: str) -> Generator[None, None, tuple[str, str]]:
        """A name, less blanks around it, and the one of `tags` that ends it; raises BrokenCallError otherwise."""
        text, tag = yield from self.until(_may_be_name, *tags)
        return checked_name(text.strip(_BLANKS)), tag

    def run(self, is_part: Callable[[str], object]) -> Generator[None, None, str]:
        """Take characters while the text with the next one is a part. Raises BrokenCallError if it is too long."""
        start = self.at
        while (yield from self.peek()) and is_part(self.text[start : self.at + 1]):
            self.at += 1
            if self.at - start > MAX_NAME_LENGTH:
                raise BrokenCallError
        return self.text[start : self.at]

    def json(self, say: Say) -> Generator[None, None, None]:
        """Pass on one JSON value as it comes. Raises BrokenCallError where it is none."""
        scan = JsonScan()
        while True:
            start = self.at
            try:
                self.at, is_complete = scan.advance(self.text, start, is_last=self.is_last)
            except NotJsonError as error:
                raise BrokenCallError from error
            if self.at > start:
                say(self.text[start : self.at])
            if is_complete:
                return
            if self.is_last:
                raise BrokenCallError
            yield

    def json_object(self, say: Say) -> Generator[None, None, None]:
        """Like `json`, for an object."""
        if (yield from self.peek()) != "{":
            raise BrokenCallError
        yield from self.json(say)


def _may_be_name(text: str) -> bool:
    return len(text) <= MAX_NAME_LENGTH and text.replace("\n", "").isprintable()


def checked_name(text: str) -> str:
    """`text` if it can be a name. Raises BrokenCallError if not."""
    if not text or not text.isprintable() or len(text) > MAX_NAME_LENGTH:
        raise BrokenCallError
    return text
