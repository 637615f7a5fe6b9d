"""The gateway over a socket: the official SDK, curl, and agents that block."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from typing import Any

import openai
import pytest

from ludus.episodes.keys import SessionKeys
from ludus.episodes.names import ModelNames
from ludus.errors import InternalError, UserError
from ludus.gateway.server import GatewayServer
from ludus.http.server import listen

ASK: Any = [{"role": "user", "content": "Guess."}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def client(base_url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="DUMMY", **options)


def test_sdk_gets_the_answer_and_its_usage(open_sessions: Any) -> None:
    """The SDK's completion is the recorded turn: text, id, finish reason, token counts."""
    url, session = open_sessions(["The number is 7."]).open()
    with client(url) as sdk:
        completion = sdk.chat.completions.create(model="default", messages=ASK)
    [turn] = session.snapshot().turns
    assert completion.id == turn.id
    assert completion.choices[0].message.content == "The number is 7."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    path = session.snapshot().path_ids(turn.node)
    assert completion.usage.completion_tokens == len(turn.sampled.token_ids)
    assert completion.usage.total_tokens == len(path)


def test_first_delta_arrives_while_the_engine_still_samples(open_sessions: Any) -> None:
    """Text reaches the client before the engine has sampled the rest."""
    session_manager = open_sessions(["The quick brown fox jumps over the lazy dog."], num_free=3)
    url, session = session_manager.open()
    with client(url) as sdk:
        stream = sdk.chat.completions.create(model="default", messages=ASK, stream=True)
        chunks = [next(stream), next(stream)]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[1].choices[0].delta.content
        assert session.snapshot().turns == ()
        session_manager.engine.open_gate()
        chunks += list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "The quick brown fox jumps over the lazy dog."
    assert {chunk.id for chunk in chunks} == {session.snapshot().turns[0].id}


def test_streamed_equals_unstreamed(open_sessions: Any) -> None:
    """Put together by the SDK's own accumulator, a stream is the unstreamed completion of the same seed."""
    session_manager = open_sessions(lambda call: f"I say {call.sampling.seed}. " + CALL)
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "tools": [ADD], "seed": 5, "n": 2, "logprobs": True}
    with client(session_manager.open(session_id="same")[0]) as sdk:
        whole = sdk.chat.completions.create(**asked)
    with (
        client(session_manager.open(session_id="same")[0]) as sdk,
        sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream,
    ):
        put_together = stream.get_final_completion()
    assert len(whole.choices) == 2
    assert whole.choices[0].message.content != whole.choices[1].message.content
    for one, other in zip(whole.choices, put_together.choices, strict=True):
        assert other.message.content == one.message.content
        assert other.finish_reason == one.finish_reason == "tool_calls"
        assert other.logprobs is not None and one.logprobs is not None
        assert other.logprobs.model_dump() == one.logprobs.model_dump()
        [streamed_call], [call] = other.message.tool_calls or [], one.message.tool_calls or []
        assert streamed_call.id == call.id
        assert streamed_call.function.arguments == call.function.arguments == '{"a": 1, "b": 2}'  # type: ignore[union-attr]
    assert put_together.usage is not None and whole.usage is not None
    assert put_together.usage.total_tokens == whole.usage.total_tokens


def test_token_ids_are_those_of_the_record(open_sessions: Any) -> None:
    """What a client asks for with vLLM's field is what the engine saw and sampled."""
    url, session = open_sessions(["One two.", "Three."]).open()
    with client(url) as sdk:
        for _ in range(2):
            told = sdk.chat.completions.create(model="default", messages=ASK, extra_body={"return_token_ids": True})
            turn = session.snapshot().turns[-1]
            assert told.prompt_token_ids + told.choices[0].token_ids == list(session.snapshot().path_ids(turn.node))
            assert told.choices[0].token_ids == list(turn.sampled.token_ids)


def test_tool_call_round_trip(open_sessions: Any) -> None:
    """A call goes out, its result comes back, the answer follows; the second turn extends the first's tokens."""
    url, session = open_sessions([CALL, "It is 3."]).open()
    messages = list(ASK)
    with client(url) as sdk:
        message = sdk.chat.completions.create(model="default", messages=messages, tools=[ADD]).choices[0].message
        assert message.tool_calls is not None
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}]
        last = sdk.chat.completions.create(model="default", messages=messages, tools=[ADD]).choices[0]
    assert (last.message.content, last.finish_reason) == ("It is 3.", "stop")
    first, second = session.snapshot().turns
    assert (second.prefix, second.follows, second.fork) == (first.id, first.id, None)


def test_blocking_client_inside_an_async_agent_completes(open_sessions: Any) -> None:
    """An agent that blocks its own event loop with the blocking client is answered all the same."""
    url, _ = open_sessions(["7"]).open()

    async def agent() -> str | None:
        with client(url) as sdk:
            return sdk.chat.completions.create(model="default", messages=ASK).choices[0].message.content

    assert asyncio.run(agent()) == "7"


def test_async_sdk_streams_over_the_socket(open_sessions: Any) -> None:
    """AsyncOpenAI streams, several requests at once."""
    url, session = open_sessions(["One two.", "One two.", "One two."]).open()

    async def ask(sdk: openai.AsyncOpenAI) -> str:
        stream = await sdk.chat.completions.create(model="default", messages=ASK, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="DUMMY") as sdk:
            return await asyncio.gather(*(ask(sdk) for _ in range(3)))

    assert asyncio.run(main()) == ["One two."] * 3
    assert len(session.snapshot().turns) == 3


def test_client_that_leaves_cancels_the_call(open_sessions: Any) -> None:
    """Closing the stream aborts the engine's call, and the tokens so far are recorded as an aborted turn."""
    session_manager = open_sessions(["The quick brown fox jumps."], num_free=3)
    url, session = session_manager.open()
    with client(url) as sdk:
        stream = sdk.chat.completions.create(model="default", messages=ASK, stream=True)
        next(stream)
        stream.close()
        assert session_manager.engine.was_aborted.wait(30)
    [turn] = asyncio.run(session.aclose("over")).turns
    assert (turn.sampled.stop_reason, len(turn.sampled.token_ids)) == ("abort", 3)


def test_unstreamed_client_that_leaves_cancels_the_call(open_sessions: Any) -> None:
    """A client that gives up waiting for a whole answer cancels it too."""
    session_manager = open_sessions(["The quick brown fox jumps."], num_free=3)
    url, session = session_manager.open()

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="DUMMY", max_retries=0) as sdk:
            waiting = asyncio.ensure_future(sdk.chat.completions.create(model="default", messages=ASK))
            await asyncio.to_thread(session_manager.engine.is_waiting.wait)
            waiting.cancel()
            await asyncio.wait([waiting])
        await asyncio.to_thread(session_manager.engine.was_aborted.wait)

    asyncio.run(main())
    assert asyncio.run(session.aclose("over")).turns[0].sampled.stop_reason == "abort"


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks_own(open_sessions: Any, stream: bool) -> None:
    """A prompt that does not fit is BadRequestError with its typed code, streamed or not."""
    url, _ = open_sessions(["7"], context_length=20).open()
    with client(url) as sdk, pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="default", messages=[{"role": "user", "content": "x" * 99}], stream=stream)
    assert (caught.value.code, caught.value.status_code) == ("context_length_exceeded", 400)


def test_wrong_key_is_the_sdks_authentication_error(open_sessions: Any) -> None:
    """Without a session's URL, a key that names no session is AuthenticationError."""
    session_manager = open_sessions(["7"])
    with client(f"{session_manager.server.base_url}/v1") as sdk, pytest.raises(openai.AuthenticationError) as caught:
        sdk.chat.completions.create(model="default", messages=ASK)
    assert caught.value.code == "invalid_api_key"


def test_models_are_listed(open_sessions: Any) -> None:
    """The SDK lists the model under its name and as default, and gets one; another is NotFoundError."""
    url, _ = open_sessions(["7"], names=ModelNames("org/tiny")).open()
    with client(url) as sdk:
        assert [model.id for model in sdk.models.list()] == ["org/tiny", "default"]
        assert sdk.models.retrieve("org/tiny").id == "org/tiny"
        with pytest.raises(openai.NotFoundError) as caught:
            sdk.models.retrieve("gpt-x")
    assert caught.value.code == "model_not_found"


def curl(*arguments: str) -> str:
    return subprocess.run(["curl", "-sS", "-N", *arguments], check=True, capture_output=True, text=True).stdout


def test_curl_against_a_running_gateway(open_sessions: Any) -> None:
    """curl without a key gets the same text streamed and unstreamed from a gateway that opens sessions."""
    session_manager = open_sessions(lambda call: f"I say {call.sampling.seed}.", opens=True)
    url = f"{session_manager.server.base_url}/v1/chat/completions"
    body = {"model": "default", "messages": ASK, "seed": 3}
    whole = json.loads(curl(url, "-d", json.dumps(body)))
    lines = curl(url, "-d", json.dumps({**body, "stream": True})).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"] == "I say 3."
    assert json.loads(curl(f"{session_manager.server.base_url}/healthz")) == {"status": "ok"}


def test_taken_port_is_a_clear_error(open_sessions: Any) -> None:
    """Listening on a port in use says so, and what to do."""
    port = int(open_sessions([]).server.base_url.rpartition(":")[2])
    with pytest.raises(UserError, match=f"127.0.0.1:{port}.*another port"):
        GatewayServer(SessionKeys()).start(port=port)


def test_stopped_server_has_no_url() -> None:
    """Before start and after stop there is no address; stopping twice is allowed."""
    server = GatewayServer(SessionKeys())
    with server:
        assert server.url_for("abc") == f"{server.base_url}/s/abc/v1"
    server.stop()
    with pytest.raises(InternalError, match="not running"):
        _ = server.base_url
    assert "stopped" in repr(server)


def test_the_server_counts_what_it_is_sent(open_sessions: Any) -> None:
    """Histories grow with every turn; only the messages that are new are read."""
    session_manager = open_sessions(["1", "2", "3"], own=True)
    url, session = session_manager.open()
    messages = list(ASK)
    with client(url) as sdk:
        for _ in range(3):
            reply = sdk.chat.completions.create(model="default", messages=messages).choices[0].message
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "higher"}]
    stats = session_manager.server.stats()
    assert (stats.num_requests, stats.num_messages, stats.num_new_messages) == (3, 1 + 3 + 5, 5)
    assert stats.num_body_bytes > 0
    assert 0.0 < stats.json_s < stats.cpu_s
    seen = session.stats()
    assert (seen.num_turns, seen.num_nodes, seen.forks) == (3, 6, {})


def test_answers_are_not_held_back_on_the_way() -> None:
    """A small packet leaves at once: the end of an answer does not wait until its beginning was acknowledged."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
