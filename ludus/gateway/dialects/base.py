"""The seam between HTTP and the recorder: a dialect turns JSON of one wire protocol into nouns, and back.

Knows: JSON, chat messages, turns.  Knows not: sockets, sessions, engines, event loops.
Invariants: dialects are pure and keep no state between requests; what a session's messages were read as is kept for
them with the session, and equal JSON is read as equal messages; the deltas of a stream, put together, are
the body that the same request gets unstreamed.

To add a protocol: a folder with `fields.py` (every field and its class), `read.py`, `write.py` and `dialect.py` (its
`Dialect`), and one line in `dialects/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ludus.errors import AgentError, BackendError, UserError
from ludus.gateway.dialects.fields import FieldTable
from ludus.text.parsers.base import Delta
from ludus.text.prefix_memo import PrefixMemo
from ludus.types import ChatRequest, Message, Sampling, Turn

JsonObject = dict[str, Any]
ReadMessages = PrefixMemo[Any, tuple[Message, ...]]
"""The histories of a session's earlier requests in one protocol: their JSON, and what each entry was read as."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One request, read and checked."""

    request: ChatRequest
    model: str
    """The name the agent asked for."""
    others: tuple[ChatRequest, ...] = ()
    """Requests that are answered together with the first; all ask for as many choices."""
    stream: bool = False
    include_usage: bool = False
    """A stream ends with the token counts."""
    logprobs: bool = False
    """The answer has the logprob of every sampled token."""
    ignored: tuple[str, ...] = ()
    """Fields accepted because they cannot change a token, and otherwise without effect."""
    wire_names: Mapping[str, str] = field(default_factory=dict)
    """Fields of `request` that the protocol calls otherwise, by their name there."""
    repeated: JsonObject = field(default_factory=dict)
    """What the answer repeats of the request, as it was written."""
    num_new_messages: int = 0
    """Entries of the history that were read; the others were known."""

    @property
    def requests(self) -> tuple[ChatRequest, ...]:
        return (self.request, *self.others)

    def with_each(self, change: Callable[[int, ChatRequest], ChatRequest]) -> ParsedRequest:
        """The same with every request changed; `change` is given its number."""
        first, *others = [change(i, request) for i, request in enumerate(self.requests)]
        return replace(self, request=first, others=tuple(others))


@dataclass(frozen=True, slots=True)
class Answer:
    """The finished turns of one request, with what a protocol states about them beside their text."""

    turns: tuple[Turn, ...]
    num_prompt_tokens: int
    token_text: Callable[[int], str]
    """Text of a single token; only asked for when logprobs are."""
    deltas: tuple[tuple[Delta, ...], ...] = ()
    """What each turn's reply grew by, in order. Empty: only what it came to is known."""

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.sampled.token_ids) for turn in self.turns)


Parse = Callable[[JsonObject, Sampling, ReadMessages], ParsedRequest]
"""(body, defaults, read): the request in a body; sampling values it does not name are the defaults'. Raises AgentError.

read: messages that the body begins with and that stand there are not read again; the others are added.
"""


class StreamWriter(Protocol):
    """Writes one streamed answer. Call order: `start`, any number of `delta`, then `finish` or `error`."""

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes: ...

    def delta(self, choice_idx: int, delta: Delta) -> bytes: ...

    def finish(self, answer: Answer) -> bytes: ...

    def error(self, error: ErrorReply) -> bytes:
        """The end of a stream that broke after it had begun; also allowed before `start`."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as an agent may see it. `kind` is the class of error as OpenAI's protocol names it."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None = None

    @property
    def may_retry(self) -> bool:
        """The same request could succeed later."""
        return self.code == BACKEND_FAILED


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """A protocol's way to ask how long a prompt would be."""

    paths: tuple[str, ...]
    """Below `/v1`; the fields are those of a request."""
    parse: Parse
    response: Callable[[int], JsonObject]


@dataclass(frozen=True, slots=True)
class Vendor:
    """What all protocols of one vendor have in common, as pure functions."""

    error: Callable[[ErrorReply], JsonObject]
    model: Callable[[str], JsonObject]
    """A model of that name, as the protocol lists models."""
    models: Callable[[list[JsonObject]], JsonObject]
    ignored_headers: tuple[str, ...]
    """Headers that its clients send and that cannot change a token, in small letters."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire protocol as pure functions: none waits, reads a clock it was not given or keeps anything."""

    vendor: Vendor
    paths: tuple[str, ...]
    """Paths below `/v1` to which requests of this protocol are posted."""
    fields: FieldTable
    """Of a request."""
    parse: Parse
    response: Callable[[Answer, ParsedRequest, str], JsonObject]
    """(answer, request, name of the model): the body of an answer that is not streamed."""
    writer: Callable[[ParsedRequest, str, float], StreamWriter]
    """(request, name of the model, time of creation)"""
    counter: TokenCounter | None = None
    """None: the protocol cannot ask how long a prompt would be."""


BACKEND_FAILED = "backend_error"
KINDS: Mapping[int, str] = {401: "authentication_error", 403: "permission_error"}


def error_reply(error: Exception) -> ErrorReply:
    """What an agent gets for `error`: its own faults in full, Ludus's as a server error."""
    if isinstance(error, AgentError):
        kind = KINDS.get(error.status, "invalid_request_error")
        return ErrorReply(error.status, error.message, kind, error.code, error.param)
    if isinstance(error, BackendError):
        return ErrorReply(500, str(error), "server_error", BACKEND_FAILED)
    if isinstance(error, UserError):
        return ErrorReply(400, str(error), "invalid_request_error", "invalid_request")
    return ErrorReply(500, f"{type(error).__name__}: {error}", "server_error", "internal_error")
