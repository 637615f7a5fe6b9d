"""The seam between HTTP and the recorder: a dialect turns the JSON of one wire protocol into Ludus's types, and back.

Knows: JSON, chat messages, turns.  Knows not: sockets, sessions, engines, event loops.
Invariants: dialects are pure and keep no state between requests (messages already parsed are kept with the session,
and passed in); equal JSON is read as equal messages; the deltas of a stream, put together, are the body that the same
request gets unstreamed.

To add a protocol: a folder with `fields.py` (every field and its class), `read.py`, `write.py` and `dialect.py` (its
`Dialect`), and one line in `dialects/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ludus.errors import AgentError, BackendError, UserError
from ludus.gateway.dialects.fields import FieldTable
from ludus.text.parsers.base import Delta
from ludus.text.prefix_memo import PrefixMemo
from ludus.types import ChatRequest, Message, Sampling, Turn

JsonObject = dict[str, Any]
ReadMessages = PrefixMemo[Any, tuple[Message, ...]]
"""The histories of a session's earlier requests in one protocol: each entry's JSON and the messages it gave."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One request, read and checked."""

    request: ChatRequest
    model: str
    """The name the agent asked for."""
    others: tuple[ChatRequest, ...] = ()
    """Further requests from the same body, answered together with the first; all ask for as many choices."""
    stream: bool = False
    include_usage: bool = False
    """End a stream with the token counts."""
    logprobs: bool = False
    """Answer with the logprob of every sampled token."""
    token_ids: bool = False
    """Answer with the ids of the prompt's and of every sampled token."""
    tokens_as_ids: bool = False
    """Beside its logprob a token is named by its id instead of its text."""
    ignored: tuple[str, ...] = ()
    """Fields that are accepted and have no effect, because they cannot change a token."""
    wire_names: Mapping[str, str] = field(default_factory=dict)
    """Fields of `request` that have another name in the protocol: that name by ours."""
    repeated: JsonObject = field(default_factory=dict)
    """Fields of the request that the answer repeats verbatim."""
    num_new_messages: int = 0
    """Entries of the history that had to be parsed; the others were known from earlier requests."""

    @property
    def requests(self) -> tuple[ChatRequest, ...]:
        return (self.request, *self.others)

    def with_each(self, change: Callable[[int, ChatRequest], ChatRequest]) -> ParsedRequest:
        """A copy with `change` applied to every request, given the request's index."""
        first, *others = [change(i, request) for i, request in enumerate(self.requests)]
        return replace(self, request=first, others=tuple(others))


@dataclass(frozen=True, slots=True)
class Answer:
    """The finished turns of one request, with what a protocol reports about them besides their text."""

    turns: tuple[Turn, ...]
    num_prompt_tokens: int
    token_text: Callable[[int], str]
    """Text of a single token; called only when logprobs are asked for."""
    deltas: tuple[tuple[Delta, ...], ...] = ()
    """The deltas of each turn's reply, in order. Empty: only the whole reply is known."""
    given_ids: Callable[[Turn], Sequence[int]] = lambda _: ()
    """The tokens of a turn's prompt; called only when token ids are asked for."""

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.sampled.token_ids) for turn in self.turns)


Parse = Callable[[JsonObject, Sampling, ReadMessages], ParsedRequest]
"""(body, defaults, read): the request in a body, with defaults for sampling values not given. Raises AgentError.

read: messages parsed before; those the body begins with are not parsed again, and new ones are added.
"""


class StreamWriter(Protocol):
    """Encodes one streamed answer. Call order: `start`, any number of `delta`, then `finish` or `error`."""

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes: ...

    def delta(self, choice_idx: int, delta: Delta) -> bytes: ...

    def finish(self, answer: Answer) -> bytes: ...

    def error(self, error: ErrorReply) -> bytes:
        """The end of a stream that failed midway; may also be called before `start`."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as an agent is shown it. `kind` is the error type in OpenAI's naming."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None = None

    @property
    def may_retry(self) -> bool:
        """Whether the same request could succeed later."""
        return self.code == BACKEND_FAILED


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """A protocol's endpoint for counting the tokens of a prompt."""

    paths: tuple[str, ...]
    """Paths below `/v1`; the body has the fields of a request."""
    parse: Parse
    response: Callable[[int], JsonObject]


@dataclass(frozen=True, slots=True)
class Vendor:
    """What all protocols of one vendor have in common, as pure functions."""

    error: Callable[[ErrorReply], JsonObject]
    model: Callable[[str], JsonObject]
    """(name): the model's entry in the list of models."""
    models: Callable[[list[JsonObject]], JsonObject]
    ignored_headers: tuple[str, ...]
    """Headers that its clients send and that cannot change a token, in lower case."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire protocol as pure functions: none of them waits, reads a clock or keeps state."""

    vendor: Vendor
    paths: tuple[str, ...]
    """Paths below `/v1` to which requests of this protocol are posted."""
    fields: FieldTable
    """The fields of a request."""
    parse: Parse
    response: Callable[[Answer, ParsedRequest, str], JsonObject]
    """(answer, request, name of the model): the body of an answer that is not streamed."""
    writer: Callable[[ParsedRequest, str, float], StreamWriter]
    """(request, name of the model, time of creation): the writer of a streamed answer."""
    counter: TokenCounter | None = None
    """None: the protocol has no endpoint for counting a prompt's tokens."""


BACKEND_FAILED = "backend_error"
KINDS: Mapping[int, str] = {401: "authentication_error", 403: "permission_error"}


def error_reply(error: Exception) -> ErrorReply:
    """What an agent is told of `error`: its own faults in full, Ludus's as a server error."""
    if isinstance(error, AgentError):
        kind = KINDS.get(error.status, "invalid_request_error")
        return ErrorReply(error.status, error.message, kind, error.code, error.param)
    if isinstance(error, BackendError):
        return ErrorReply(500, str(error), "server_error", BACKEND_FAILED)
    if isinstance(error, UserError):
        return ErrorReply(400, str(error), "invalid_request_error", "invalid_request")
    return ErrorReply(500, f"{type(error).__name__}: {error}", "server_error", "internal_error")
