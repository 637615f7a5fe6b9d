"""Chat models over HTTP: what is sent, what is tried again, what an error says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ludus.errors import BackendError, UserError
from ludus.rewards.chat.base import ChatAnswer, Usage
from ludus.rewards.chat.http import HttpChatModel, Price
from ludus.rewards.chat.resolve import resolve_chat_model
from ludus.rewards.providers import Endpoint as Address
from tests.rewards.conftest import Answer, Endpoint, completion

ASKED = [{"role": "user", "content": "Which?"}]
SCHEMA = {"type": "object"}


def ask(endpoint: Endpoint, **options: Any) -> ChatAnswer:
    async def run() -> ChatAnswer:
        model = HttpChatModel(Address(endpoint.base_url, "judge", "k"), first_wait_s=0.0, **options)
        try:
            return await model.ask(ASKED, name="form", schema=SCHEMA)
        finally:
            await model.aclose()

    return asyncio.run(run())


def test_a_request_names_the_schema(endpoint: Endpoint) -> None:
    """Model, messages, parameters and schema are in the body, the key in its header."""
    endpoint.answers = [completion("{}")]
    answer = ask(endpoint, parameters={"temperature": 0.5})
    assert answer == ChatAnswer("{}", Usage(1, 0, 100, 10, None))
    (body,) = endpoint.bodies
    assert body == {
        "model": "judge",
        "messages": ASKED,
        "temperature": 0.5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "form", "strict": True, "schema": SCHEMA},
        },
    }
    assert endpoint.paths == ["/v1/chat/completions"]
    assert endpoint.keys == ["Bearer k"]


def test_a_server_without_schemas_is_asked_without_one(endpoint: Endpoint) -> None:
    """A refused `response_format` is left out, from then on."""
    endpoint.answers = [
        lambda body: (400, {"error": "no schemas"}) if "response_format" in body else completion("plain")
    ]

    async def twice() -> list[str]:
        model = HttpChatModel(Address(endpoint.base_url, "judge", "k"))
        answers = [await model.ask(ASKED, name="form", schema=SCHEMA) for _ in range(2)]
        await model.aclose()
        return [answer.text for answer in answers]

    assert asyncio.run(twice()) == ["plain", "plain"]
    assert ["response_format" in body for body in endpoint.bodies] == [True, False, False]


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_busy_and_broken_servers_are_asked_again(endpoint: Endpoint, status: int) -> None:
    """Until they answer."""
    endpoint.answers = [(status, "later"), (status, "later"), completion("at last")]
    assert ask(endpoint).text == "at last"


def test_a_server_that_stays_broken_is_an_error(endpoint: Endpoint) -> None:
    """It names the model, the address, the status and what was said."""
    endpoint.answers = [(503, "down for  maintenance")]
    with pytest.raises(BackendError, match=r"'judge' at http.* refused with 503: down for maintenance \(3 attempts\)"):
        ask(endpoint, num_retries=2)
    assert len(endpoint.bodies) == 3


def test_the_wait_is_what_the_server_says(endpoint: Endpoint) -> None:
    """`retry-after` goes before the model's own wait."""
    endpoint.headers = {"retry-after": "0"}
    endpoint.answers = [(429, "slow down"), completion("now")]

    async def run() -> str:
        model = HttpChatModel(Address(endpoint.base_url, "judge", "k"), first_wait_s=60.0)
        answer = await asyncio.wait_for(model.ask(ASKED, name="form", schema=SCHEMA), 10)
        await model.aclose()
        return answer.text

    assert asyncio.run(run()) == "now"


def test_nobody_at_the_address_is_an_error() -> None:
    """A connection that is refused is tried again, and then said."""
    model = HttpChatModel(Address("http://127.0.0.1:9/v1", "judge", "k"), num_retries=1, first_wait_s=0.0)

    async def run() -> None:
        try:
            await model.ask(ASKED, name="form", schema=SCHEMA)
        finally:
            await model.aclose()

    with pytest.raises(BackendError, match="cannot be reached: ConnectError"):
        asyncio.run(run())


def test_a_server_that_never_answers_is_given_up(endpoint: Endpoint) -> None:
    """After the time of one call, whatever was tried in it."""
    released = threading.Event()

    def hang(_: dict[str, Any]) -> Answer:
        released.wait(10)
        return completion("too late")

    endpoint.answers = [(503, "busy"), hang]
    try:
        with pytest.raises(BackendError, match=r"'judge' at http.* gave no answer within 0\.3 s"):
            ask(endpoint, timeout_s=0.3)
    finally:
        released.set()
    assert len(endpoint.bodies) == 2


def test_an_address_that_is_none_is_the_users_error() -> None:
    """A scheme that nobody speaks."""
    for base_url in ("h:1/v1", "ftp://h/v1", "http://h:port/v1"):
        model = HttpChatModel(Address(base_url, "judge", "k"), num_retries=0)
        with pytest.raises(UserError, match="is no address"):
            asyncio.run(model.ask(ASKED, name="form", schema=SCHEMA))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_is_the_users_error(endpoint: Endpoint, status: int) -> None:
    """It is not tried again: it would never help."""
    endpoint.answers = [(status, {"error": {"message": "no such model"}})]
    with pytest.raises(UserError, match=r"no such model.*Check the model's name, the base_url and the key"):
        ask(endpoint)
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("body", ["<html>", "[]", {"choices": []}, {"choices": [{"message": None}]}, {"error": "x"}])
def test_an_answer_that_is_no_completion_is_an_error(endpoint: Endpoint, body: Any) -> None:
    """Whatever a proxy in between may say with status 200."""
    endpoint.answers = [(200, body)]
    with pytest.raises(BackendError, match="answered with no chat completion"):
        ask(endpoint)


def test_content_may_be_missing_in_parts_or_cut(endpoint: Endpoint) -> None:
    """No content is an empty text, and an answer that met its limit says so."""
    endpoint.answers = [completion(None, finish_reason="length")]
    assert ask(endpoint) == ChatAnswer("", Usage(1, 0, 100, 10, None), is_cut=True)
    endpoint.answers = [completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]  # type: ignore[arg-type]
    assert ask(endpoint).text == "ab"


def test_cost_is_what_the_endpoint_says_or_by_the_price(endpoint: Endpoint) -> None:
    """A price of the caller's goes before the endpoint's word; with neither, nobody knows."""
    endpoint.answers = [completion("{}", usage={"prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.5})]
    assert ask(endpoint).usage.cost_usd == 0.5
    assert ask(endpoint, price=Price(2.0, 8.0)).usage.cost_usd == pytest.approx(0.0028)
    known, unknown = Usage(1, 0, 5, 5, 0.5), Usage(1, 0, 5, 5, None)
    assert (known + known).cost_usd == 1.0
    assert (known + unknown).cost_usd is None


def test_fields_that_are_the_askers_cannot_be_set() -> None:
    """Messages, schema and stream are not parameters."""
    with pytest.raises(UserError, match="cannot set n, stream"):
        HttpChatModel(Address("http://h", "judge", "k"), parameters={"stream": True, "n": 2})


def test_litellms_arguments_are_understood() -> None:
    """`api_base`, `api_key`, `timeout` and `num_retries` are not sent on."""
    model = resolve_chat_model(
        "qwen", {"api_base": "http://h:1/v1", "api_key": "k", "timeout": 5, "num_retries": 0, "temperature": 0}
    )
    assert model.identity == {"base_url": "http://h:1/v1", "model": "qwen", "parameters": {"temperature": 0}}
    with pytest.raises(UserError, match="api_base and base_url say the same thing twice"):
        resolve_chat_model("qwen", {"api_base": "http://a", "base_url": "http://b"})


def test_a_provider_that_nobody_knows_is_named() -> None:
    """With LiteLLM missing, the error says what would help."""
    with pytest.raises(UserError, match="the provider 'bedrock' of the model 'bedrock/x' is unknown"):
        resolve_chat_model("bedrock/x")
