"""Chat models behind any endpoint that speaks OpenAI's Chat Completions.

Knows: HTTP, what may be retried, which fields an endpoint may refuse.  Knows not: judges, prices.
Invariant: whatever the network does, a call ends with an answer or with one typed error that says what happened.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from ludus.errors import BackendError, UserError
from ludus.rewards.chat.base import WRONG_SETTINGS, ChatAnswer, Json, Usage
from ludus.rewards.providers import Endpoint

logger = logging.getLogger(__name__)

TIMEOUT_S = 600.0  # models that think before they judge a large group take minutes
CONNECT_TIMEOUT_S = 10.0
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
MOST_WAIT_S = 60.0
TOLD_CHARACTERS = 500
"""Most characters of an endpoint's own message that are quoted in an error."""
OWN_FIELDS = frozenset({"model", "messages", "response_format", "n", "stream"})


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in US dollars per million tokens."""

    prompt: float
    completion: float

    def of(self, num_prompt_tokens: int, num_completion_tokens: int) -> float:
        return (self.prompt * num_prompt_tokens + self.completion * num_completion_tokens) / 1e6


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A complete message of a model, in the form of Chat Completions."""

    message: dict[str, Any]
    usage: Usage
    is_cut: bool
    """Whether it was cut off at a limit of length."""


class HttpChatModel:
    """One model at one endpoint. Its connections belong to the event loop of the first call."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        parameters: Json | None = None,
        timeout_s: float = TIMEOUT_S,
        num_retries: int = 4,
        first_wait_s: float = 0.5,
        price: Price | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        """parameters: further fields of every request, such as temperature. None: none.

        timeout_s: of one call, with all its retries.
        num_retries: how often a call is repeated if the server is busy, broken or unreachable; the wait doubles each
        time, unless the server asks for another.
        price: None: the cost that the endpoint reports, if it does.
        client: used, and not closed. None: one of its own.
        """
        self.endpoint = endpoint
        self._parameters = dict(parameters or {})
        wrong = sorted(OWN_FIELDS & self._parameters.keys())
        if wrong:
            raise UserError(f"the parameters of a chat model cannot set {', '.join(wrong)}; remove it")
        self._timeout_s, self._num_retries, self._first_wait_s = timeout_s, num_retries, first_wait_s
        self._price = price
        self._takes_schema = True
        self._is_clients_owner = client is None
        self._client = client
        """None: no call yet."""

    def __repr__(self) -> str:
        return f"HttpChatModel({self.endpoint.model!r} at {self.endpoint.base_url})"

    @property
    def identity(self) -> Json:
        return {"base_url": self.endpoint.base_url, "model": self.endpoint.model, "parameters": self._parameters}

    async def ask(self, messages: Sequence[Json], *, name: str, schema: Json) -> ChatAnswer:
        body = {"model": self.endpoint.model, "messages": list(messages), **self._parameters}
        form = {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": dict(schema)}}
        has_form = self._takes_schema  # which another call may find out meanwhile
        response = await self._post({**body, "response_format": form} if has_form else body)
        if has_form and response.status_code in (400, 422):
            # Some servers know no schemas. Every prompt spells the form out, so the model may still keep to it.
            plain = await self._post(body)
            if plain.status_code in (400, 422):
                raise self._refused(response)
            self._takes_schema, response = False, plain
            logger.info("chat.no_schema model=%s base_url=%s", self.endpoint.model, self.endpoint.base_url)
        told = self._read_message(response)
        return ChatAnswer(_plain(told.message.get("content") or ""), told.usage, told.is_cut)

    async def complete(self, messages: Sequence[Json]) -> ChatMessage:
        """The model's next message, without a schema. Raises what `ask` raises."""
        body = {"model": self.endpoint.model, "messages": list(messages), **self._parameters}
        return self._read_message(await self._post(body))

    async def aclose(self) -> None:
        if self._client is not None and self._is_clients_owner:
            await self._client.aclose()
            self._client = None

    async def _post(self, body: Json) -> httpx.Response:
        """The last response; raises BackendError if there is none in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._tried(body)
        except TimeoutError:
            raise BackendError(f"{self!r} gave no answer within {self._timeout_s:g} s") from None

    async def _tried(self, body: Json) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S))
        url = f"{self.endpoint.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}"}
        for attempt in range(self._num_retries + 1):
            wait_s = min(MOST_WAIT_S, self._first_wait_s * 2**attempt)
            try:
                response = await self._client.post(url, json=body, headers=headers)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise UserError(f"base_url={self.endpoint.base_url!r} is no address: {error}") from None
            except httpx.TransportError as error:
                failure: Exception = BackendError(f"{self!r} cannot be reached: {type(error).__name__}: {error}")
            else:
                if response.status_code not in RETRIED:
                    return response
                failure, wait_s = self._refused(response), _wished_wait_s(response, wait_s)
            if attempt < self._num_retries:
                logger.debug("chat.retried model=%s attempt=%d: %s", self.endpoint.model, attempt + 1, failure)
                await asyncio.sleep(wait_s)
        raise BackendError(f"{failure} ({self._num_retries + 1} attempts)")

    def _read_message(self, response: httpx.Response) -> ChatMessage:
        if not response.is_success:
            raise self._refused(response)
        try:
            data = response.json()
            choice = data["choices"][0]
            message = dict(choice["message"])
            usage = data.get("usage") or {}
            counts = [int(usage.get(field) or 0) for field in ("prompt_tokens", "completion_tokens")]
            is_cut = choice.get("finish_reason") == "length"
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise BackendError(f"{self!r} answered with no chat completion: {_excerpt(response.text)}") from None
        cost = usage.get("cost") if self._price is None else self._price.of(*counts)
        cost_usd = float(cost) if isinstance(cost, int | float) else None
        return ChatMessage(message, Usage(1, 0, counts[0], counts[1], cost_usd), is_cut)

    def _refused(self, response: httpx.Response) -> UserError | BackendError:
        said = f"{self!r} refused with {response.status_code}: {_excerpt(response.text)}"
        if response.status_code in WRONG_SETTINGS:
            return UserError(f"{said} Check the model's name, the base_url and the key")
        return BackendError(said)


def _plain(content: Any) -> str:
    """The text of a message's content, which may consist of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def _wished_wait_s(response: httpx.Response, otherwise: float) -> float:
    try:
        return min(MOST_WAIT_S, max(0.0, float(response.headers.get("retry-after", otherwise))))
    except ValueError:  # a date
        return otherwise


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= TOLD_CHARACTERS else flat[:TOLD_CHARACTERS] + " …"
