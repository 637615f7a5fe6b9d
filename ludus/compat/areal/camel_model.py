"""A CAMEL model that uses the client of a rollout workflow: `ChatAgent(model=AReaLOpenAICompatibleModel(…))`.

Knows: CAMEL, imported when a model is made.  Knows not: the record, training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ludus.compat.areal.calculator import sdk
from ludus.errors import UserError

_PER_MESSAGE, _PER_REPLY = 3, 3
"""Tokens that OpenAI's chat templates add around each message, and before an answer."""


def AReaLOpenAICompatibleModel(  # noqa: N802  # the name that its users know
    model_type: Any,
    openai_client: Any,
    tokenizer: Any,
    model_config_dict: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    url: str | None = None,
    token_counter: Any = None,
    timeout: float | None = None,
    max_retries: int = 3,
    **options: Any,
) -> Any:
    """A CAMEL model that asks `openai_client`, an `ArealOpenAI`. Agents must use `astep`.

    tokenizer: counts the tokens of a conversation if no token_counter is given.
    api_key, url: ignored, as the client has its own.  options: ignored, as in AReaL.
    Raises UserError if CAMEL is not installed.
    """
    del options
    counter = token_counter or AReaLTokenCounter(tokenizer, _PER_MESSAGE)
    return _backend()(
        openai_client, model_type, dict(model_config_dict or {}), api_key, url, counter, timeout, max_retries
    )


def AReaLTokenCounter(tokenizer: Any, tokens_per_message: int) -> Any:  # noqa: N802  # the same
    """Counts the tokens of messages of text. Raises UserError if CAMEL is not installed."""
    return _counter()(tokenizer, tokens_per_message)


@cache
def _backend() -> Any:
    base: Any = sdk("camel.models.base_model", "camel-ai").BaseModelBackend

    class Backend(base):  # type: ignore[misc]  # CAMEL is not installed beside the types of Ludus
        def __init__(self, openai_client: Any, *given: Any) -> None:
            super().__init__(*given)
            self._client = openai_client

        @property
        def token_counter(self) -> Any:
            return self._token_counter

        def _run(self, messages: Any, response_format: Any = None, tools: Any = None) -> Any:
            raise NotImplementedError("a workflow's client is asynchronous; ask the agent with `await agent.astep(…)`")

        async def _arun(self, messages: Any, response_format: Any = None, tools: Any = None) -> Any:
            if response_format is not None:
                raise UserError("response_format cannot act here; describe the form in the message")
            asked = {**self.model_config_dict, **({"tools": tools} if tools else {})}
            return await self._client.chat.completions.create(messages=messages, **asked)

    return Backend


@cache
def _counter() -> Any:
    base: Any = sdk("camel.utils", "camel-ai").BaseTokenCounter

    class Counter(base):  # type: ignore[misc]  # the same
        def __init__(self, tokenizer: Any, tokens_per_message: int) -> None:
            self.tokenizer = tokenizer
            self.tokens_per_message = tokens_per_message

        def count_tokens_from_messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
            texts = [text for message in messages for value in message.values() for text in _texts(value)]
            counted = sum(len(self.encode(text)) for text in texts)
            return counted + self.tokens_per_message * len(messages) + _PER_REPLY

        def encode(self, text: str) -> list[int]:
            return list(self.tokenizer.encode(text))

        def decode(self, token_ids: list[int]) -> str:
            return str(self.tokenizer.decode(token_ids))

    return Counter


def _texts(value: Any) -> list[str]:
    """The texts in a field of a message. Raises UserError for a part that is no text."""
    if not isinstance(value, list):
        return [str(value)]
    for part in value:
        if not isinstance(part, Mapping) or part.get("type", "text") != "text":
            raise UserError(f"a message holds {part!r:.100}; models here read text alone")
    return [str(part.get("text", "")) for part in value]
