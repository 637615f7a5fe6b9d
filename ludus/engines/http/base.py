"""The protocol between an engine behind a URL and the server there: what each kind of server formats in its own way.

Knows: calls, pieces of answers, versions of weights.  Knows not: loops, threads, connections, which server it is.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx

from ludus.engines.base import WeightSource
from ludus.errors import BackendError, LudusError, UserError
from ludus.http.status import PASSING
from ludus.text.tokenizer import Tokenizer
from ludus.types import MAX_KEPT_IDS, Call, StopReason

CONNECT_TIMEOUT_S = 10.0
STOP_REASONS: Mapping[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}
"""Ours, by what servers call them."""
SAME_EVERYWHERE = (*("temperature", "top_p", "min_p"), *("presence_penalty", "frequency_penalty", "repetition_penalty"))
"""What of a call's sampling has one name everywhere."""
Load = Callable[[], Awaitable[None]]
"""Loads new weights into a server; awaited once."""
UNPUBLISHED = -1
"""The version of weights that nobody has published to the server; the first that is published is 0."""
PROBE_TEXT = "Tokens: {1, 22}\n\n  déjà-vu, 你好\t🙂"
"""Which two tokenizers read as the same ids only if they are one."""


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one event of a stream holds of an answer: new tokens, and how it ended if it did."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token the likeliest (id, logprob), of these tokens or in the last piece of all. Empty: not reported here."""
    kept_ids: tuple[tuple[int, ...] | None, ...] = ()
    """Per token the ids it was drawn among, likewise."""
    versions: tuple[int, ...] | None = None
    """None: the server does not report them; they are those of the publishing."""
    all_versions: tuple[int, ...] | None = None
    """Of every token of the answer. None: this is not the last event, or the server does not report them."""
    stop_reason: StopReason | None = None
    """None: more is to come."""
    stop_string: str | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that were cached, in the one event that holds them."""
    prefill_s: float | None = None
    """As of `Sampled`, in the event with the stop reason. None: the server does not say."""


@dataclass(frozen=True, slots=True)
class Server:
    """What every kind of server says of itself, and the name that a run has there."""

    url: str
    context_length: int
    stop_ids: frozenset[int]
    """End-of-turn ids of the model, of which the server may know fewer."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    publisher: str = field(default_factory=lambda: secrets.token_hex(4))
    """Stands before a version in the name that the server has for it: it may have got versions of runs before."""

    def named(self, version: int) -> str:
        return f"{self.publisher}-{version}"

    def version(self, name: str) -> int:
        """The version that has this name there."""
        publisher, _, version = name.rpartition("-")
        return int(version) if publisher == self.publisher else UNPUBLISHED

    def params(self, call: Call) -> dict[str, Any]:
        """The part of a call's sampling that has one name everywhere. What ends the answer is sent in full."""
        sampling = call.sampling
        return {
            **{name: getattr(sampling, name) for name in SAME_EVERYWHERE},
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(sampling.stop_ids(self.stop_ids)),
        }


Ask = Callable[..., dict[str, Any]]
"""(method, path, body=None): what a server answers before there is an engine. Raises what its refusal means."""


@dataclass(eq=False)
class ServerProtocol(ABC):
    """How one kind of server is spoken to. It holds what the server says of itself, and no state of any call."""

    name: ClassVar[str]
    """What its kind is called in messages: vLLM, SGLang."""
    reports_versions: ClassVar[bool] = False
    """Every piece says which weights sampled it, and weights are loaded between two tokens: nothing pauses."""
    server: Server

    @property
    def shares_card(self) -> bool:
        """A pause puts the server to sleep until it is resumed: its card is the trainer's then."""
        return False

    @property
    def holds_tokens(self) -> bool:
        """Tokens wait at the server until some can be sent together, also while new weights are loaded."""
        return False

    @classmethod
    @contextmanager
    def asking(cls, url: str, api_key: str | None, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[Ask]:
        """Within the block the server at `url` can be asked what it is."""
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        with httpx.Client(base_url=url, headers=bearer(api_key), timeout=timeout, **direct()) as http:

            def ask(method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
                with failing_as_backend(cls.name, url):
                    response = http.request(method, path, json=body)
                return cls.checked(response)

            yield ask

    @classmethod
    def read_error(cls, response: httpx.Response) -> LudusError:
        """What a status other than 200 means."""
        return refusal(cls.name, response)

    @classmethod
    def checked(cls, response: httpx.Response) -> dict[str, Any]:
        """The object that was answered. Raises what a status other than 200 means."""
        if response.is_error:
            raise cls.read_error(response)
        return parse_object(response)

    @abstractmethod
    def check(self, call: Call) -> None:
        """Raises UserError for a call that this server cannot serve, or cannot serve so that the record is exact."""

    @abstractmethod
    def request_for(self, call: Call, seed: int) -> tuple[str, dict[str, Any]]:
        """Path and body of the request whose stream of events is the answer."""

    @abstractmethod
    def read(self, call: Call, num_read: int, event: Mapping[str, Any]) -> StreamDelta:
        """What is new in an event; `num_read` tokens were read before. Raises what an error in it means."""

    @abstractmethod
    async def score(self, http: httpx.AsyncClient, token_ids: Sequence[int]) -> tuple[float, ...]: ...

    @abstractmethod
    async def pause(self, http: httpx.AsyncClient) -> None:
        """Sequences in flight stay where they are."""

    @abstractmethod
    async def resume(self, http: httpx.AsyncClient) -> None: ...

    @abstractmethod
    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource) -> Load:
        """What makes the server sample with `weights`, after all that can be done while it still samples is done.

        Raises UserError if they cannot be published to this server."""

    @abstractmethod
    async def current_version(self, http: httpx.AsyncClient) -> int | None:
        """The version that the server has now; UNPUBLISHED for weights of others. None: it does not tell."""

    def forget(self) -> None:  # noqa: B027  most are sent nothing but weights
        """The server was started again: whatever it was sent must be sent anew."""


@contextmanager
def failing_as_backend(name: str, url: str) -> Iterator[None]:
    """Broken connections become BackendErrors."""
    try:
        yield
    except httpx.HTTPError as error:
        raise BackendError(
            f"no {name} answers at {url}: {error or type(error).__name__}; start one there, or change the URL"
        ) from error


def direct() -> dict[str, Any]:
    """With what every client of a server is made: no proxy of the environment is given the run's key or its weights.

    Private authorities are trusted all the same, as SSL_CERT_FILE and SSL_CERT_DIR name them.
    """
    return {"trust_env": False, "verify": httpx.create_ssl_context()}


def bearer(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def parse_object(response: httpx.Response) -> dict[str, Any]:
    try:
        found: dict[str, Any] = response.json()
    except ValueError as error:
        raise BackendError(f"{response.url} answered with something that is no JSON: {response.text[:200]}") from error
    return found


def error_message(response: httpx.Response) -> str:
    """The message of an error answer, in the shape that OpenAI's interface has or as they are."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, Mapping) else error)
    except (ValueError, LookupError, TypeError):
        return response.text[:500]


def refusal(name: str, response: httpx.Response) -> LudusError:
    """What a status other than 200 means, of a server whose kind is called `name`."""
    url, status = response.url, response.status_code
    where = f"the {name} at {url.host}:{url.port} answered {url.path}"
    return error_for_status(f"{where} with {status}: {error_message(response)}", status)


def error_for_status(message: str, status: int) -> LudusError:
    """From 500 on, or where it asks for another time, the server failed; else, what it was asked cannot be."""
    is_its_own = status >= httpx.codes.INTERNAL_SERVER_ERROR or status in PASSING
    return BackendError(message) if is_its_own else UserError(message)


def check_same_ids(theirs: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raises UserError if the server reads PROBE_TEXT as other tokens than the tokenizer here."""
    ours = list(tokenizer.encode(PROBE_TEXT))
    if list(theirs) != ours:
        raise UserError(
            f"the server's tokenizer is not that of the folder: it reads {PROBE_TEXT!r} as {list(theirs)}, not as "
            f"{ours}; name the folder of the model that is served"
        )


def kept_ids(mask: Sequence[int] | None) -> tuple[int, ...] | None:
    """The ids that a token was drawn among, as a record keeps them. None: not told, or too many."""
    return None if mask is None or len(mask) > MAX_KEPT_IDS else tuple(sorted(int(token) for token in mask))
