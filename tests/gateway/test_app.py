"""Routes, headers, errors and retries of the gateway, over HTTP without an SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ludus.episodes.names import ModelNames
from ludus.errors import BackendError
from ludus.types import Sampling

ASK = {"model": "default", "messages": [{"role": "user", "content": "Guess."}]}
FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


def check_error(response: httpx.Response, status: int, code: str | None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    return error


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": nope}', b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b"[]"])
def test_malformed_json_is_a_400(open_sessions: Any, http: httpx.Client, body: bytes) -> None:
    """Whatever is no JSON object is refused in OpenAI's shape."""
    url, _ = open_sessions([]).open()
    check_error(http.post(f"{url}/chat/completions", content=body), 400, "invalid_json")


def test_unknown_field_is_a_400(open_sessions: Any, http: httpx.Client) -> None:
    """A field that no protocol has is refused by name, and the SDK does not try again."""
    url, _ = open_sessions([]).open()
    response = http.post(f"{url}/chat/completions", json={**ASK, "temprature": 1})
    error = check_error(response, 400, "unknown_parameter")
    assert (error["param"], response.headers["x-should-retry"]) == ("temprature", "false")


def test_unknown_routes_answer_in_openais_shape(open_sessions: Any, http: httpx.Client) -> None:
    """404 and 405 are JSON errors too, and no secret is written back."""
    session_manager = open_sessions([])
    url, _ = session_manager.open()
    check_error(http.post(f"{session_manager.server.base_url}/v1/embeddings", json={}), 404, "unknown_url")
    check_error(http.post(f"{url}/chat/completions/", json=ASK), 404, "unknown_url")
    wrong = check_error(http.get(f"{url}/chat/completions"), 405, "method_not_supported")
    assert wrong["message"].startswith("Invalid URL (GET /s/***/v1/chat/completions)")


def test_wrong_keys_are_401_and_403(open_sessions: Any, http: httpx.Client) -> None:
    """No session, an unknown session, and two different sessions have errors of their own."""
    session_manager = open_sessions([])
    (one, _), (other, _) = session_manager.open("one"), session_manager.open("other")
    key = {"Authorization": "Bearer " + other.split("/")[-2]}
    check_error(http.post(f"{session_manager.server.base_url}/v1/chat/completions", json=ASK), 401, "invalid_api_key")
    check_error(http.get(f"{session_manager.server.base_url}/v1/models"), 401, "invalid_api_key")
    check_error(http.get(session_manager.server.url_for("nobody") + "/models"), 401, "invalid_session")
    check_error(http.post(f"{one}/chat/completions", json=ASK, headers=key), 403, "session_mismatch")
    assert http.get(f"{session_manager.server.base_url}/v1/models", headers=key).status_code == 200


def test_bearer_key_names_the_session(open_sessions: Any, http: httpx.Client) -> None:
    """Without a path, the session is found by its key."""
    session_manager = open_sessions(["7"])
    url, session = session_manager.open()
    key = {"x-api-key": url.split("/")[-2]}
    assert http.post(f"{session_manager.server.base_url}/v1/chat/completions", json=ASK, headers=key).status_code == 200
    assert len(session.snapshot().turns) == 1


def test_fields_without_effect_are_named_in_headers(open_sessions: Any, http: httpx.Client) -> None:
    """Ignored fields and pinned sampling are in headers, streamed or not; the pinned value is the one recorded."""
    url, session = open_sessions(["7", "7"], names=ModelNames(served=("gpt-*",))).open(
        sampling=Sampling(top_p=1.0, temperature=0.5), pinned=("top_p", "temperature")
    )
    body = {**ASK, "model": "gpt-x", "user": "me", "top_p": 0.5, "temperature": 0.5}
    for stream in (False, True):
        response = http.post(f"{url}/chat/completions", json={**body, "stream": stream})
        assert response.headers["x-ludus-ignored"] == "user"
        assert response.headers["x-ludus-model"] == "default"
        assert response.headers["x-ludus-pinned"] == "top_p"
    assert [turn.sampling.top_p for turn in session.snapshot().turns] == [1.0, 1.0]
    assert "x-ludus-ignored" not in http.get(f"{url}/models").headers


def test_a_model_that_is_not_here_is_refused(open_sessions: Any, http: httpx.Client) -> None:
    """Another model's name, and a step where the newest weights alone are served; the answer says what there is."""
    url, session = open_sessions([], names=ModelNames("default", ("org/tiny",), ("o3", "gpt-*"))).open()
    for name, why in (
        ("default@3", "the newest weights alone are served here"),
        ("org/tiny@0", "the newest weights alone are served here"),
        ("claude@20250101", "model.served_names"),
        ("o4", "model.served_names"),
    ):
        error = check_error(http.post(f"{url}/chat/completions", json={**ASK, "model": name}), 404, "model_not_found")
        assert why in error["message"] and error["message"].endswith("there is default, org/tiny, o3.")
        check_error(http.get(f"{url}/models/{name}"), 404, "model_not_found")
    assert session.snapshot().turns == ()


def test_a_model_answers_under_all_its_names(open_sessions: Any, http: httpx.Client) -> None:
    """Its own, and those of models in whose place it answers; of these the answer says who it is of."""
    url, session = open_sessions(["7"] * 4, names=ModelNames("default", ("org/tiny",), ("o3", "gpt-*"))).open()
    for name, header in (("default", None), ("org/tiny", None), ("o3", "default"), ("gpt-4o", "default")):
        answer = http.post(f"{url}/chat/completions", json={**ASK, "model": name})
        assert (answer.json()["model"], answer.headers.get("x-ludus-model")) == ("default", header)
    assert len(session.snapshot().turns) == 4


def test_agent_header_tags_the_turn(open_sessions: Any, http: httpx.Client) -> None:
    """A sub-agent names itself in a header, whatever the protocol."""
    url, session = open_sessions(["7"]).open()
    http.post(f"{url}/chat/completions", json=ASK, headers={"x-ludus-agent": "critic"})
    assert session.snapshot().turns[0].agent == "critic"


def test_equal_requests_are_two_samples_and_a_retry_is_one(open_sessions: Any, http: httpx.Client) -> None:
    """Two equal requests are two turns; the same one sent again, by header or key, is the turn it was."""
    url, session = open_sessions(["one", "two", "three"]).open()

    def ask(headers: dict[str, str]) -> str:
        return str(http.post(f"{url}/chat/completions", json=ASK, headers=headers).json()["id"])

    first, second, retried = ask(FIRST), ask(FIRST), ask(AGAIN)
    assert first != second == retried
    named = ask({"idempotency-key": "k"})
    assert ask({"idempotency-key": "k"}) == named
    assert len(session.snapshot().turns) == 3
    other = {**ASK, "temperature": 0.5}
    response = http.post(f"{url}/chat/completions", json=other, headers={"idempotency-key": "k"})
    check_error(response, 409, "idempotency_mismatch")
    assert response.headers["x-should-retry"] == "false"


def test_replayed_turn_is_streamed_in_full(open_sessions: Any, http: httpx.Client) -> None:
    """A retry of a finished stream gets the same events again."""
    url, session = open_sessions(["The number is 7."]).open()
    body = {**ASK, "stream": True}
    texts = []
    for headers in (FIRST, AGAIN):
        lines = http.post(f"{url}/chat/completions", json=body, headers=headers).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        texts.append("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))
        assert {chunk["id"] for chunk in chunks} == {session.snapshot().turns[0].id}
    assert texts == ["The number is 7."] * 2
    assert len(session.snapshot().turns) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_failed_engine_is_a_500_that_may_be_sent_again(open_sessions: Any, http: httpx.Client, stream: bool) -> None:
    """An engine that fails before its first token is a 500, even for a stream; the retry is sampled anew."""
    failures = iter([True])

    def answer(call: Any) -> str:
        if next(failures, False):
            raise BackendError("out of memory")
        return "7"

    url, session = open_sessions(answer).open()
    body = {**ASK, "stream": stream}
    response = http.post(f"{url}/chat/completions", json=body, headers=FIRST)
    assert check_error(response, 500, "backend_error")["message"] == "out of memory"
    assert response.headers["x-should-retry"] == "true"
    assert http.post(f"{url}/chat/completions", json=body, headers=AGAIN).status_code == 200
    assert len(session.snapshot().turns) == 1


def test_closed_session_is_a_typed_400(open_sessions: Any, http: httpx.Client) -> None:
    """After the episode's end the agent gets an error with a code and never as a rate limit."""
    url, session = open_sessions(["7"]).open()
    session.close("over")
    check_error(http.post(f"{url}/chat/completions", json=ASK), 400, "session_closed")


def test_stream_that_breaks_ends_with_an_error_event(open_sessions: Any) -> None:
    """When the session closes in the middle of a stream, its last event is the error in OpenAI's shape."""
    session_manager = open_sessions(["The quick brown fox jumps."], num_free=3)
    url, session = session_manager.open()
    with (
        httpx.Client(timeout=30) as http,
        http.stream("POST", f"{url}/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        session.close("over")
        rest = [line for line in lines if line]
    assert response.status_code == 200
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "session_closed"
    assert rest[-1] == "data: [DONE]"


def test_silent_stream_is_kept_alive(open_sessions: Any) -> None:
    """While the engine is silent the client gets comments, which the event-stream format lets it skip."""
    session_manager = open_sessions(["The quick brown fox jumps."], num_free=0, keep_alive_s=0.01)
    url, _ = session_manager.open()
    with (
        httpx.Client(timeout=30) as http,
        http.stream("POST", f"{url}/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == ": keep-alive"
        session_manager.engine.open_gate()
        written = [line for line in lines if line.startswith("data: ")]
    assert json.loads(written[0].removeprefix("data: "))["choices"][0]["delta"] == {"role": "assistant"}
    assert written[-1] == "data: [DONE]"


def test_many_requests_of_many_sessions_at_once(open_sessions: Any) -> None:
    """Each of forty sessions gets its own answers, two requests each, all at once."""
    session_manager = open_sessions(lambda call: call.session_id)
    opened = [session_manager.open(f"s{i}") for i in range(40)]

    async def main() -> list[str]:
        async with httpx.AsyncClient(timeout=30) as http:
            posts = [http.post(f"{url}/chat/completions", json=ASK) for url, _ in opened * 2]
            return [response.json()["choices"][0]["message"]["content"] for response in await asyncio.gather(*posts)]

    assert asyncio.run(main()) == [session.id for _, session in opened] * 2
    assert all(len(session.snapshot().turns) == 2 for _, session in opened)
