"""The gateway's protocols over a socket, driven by the official SDKs and their helpers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ludus.episodes.names import ModelNames
from tests.gateway.clients import async_client

QUESTION = "Guess."
ASK: Any = [{"role": "user", "content": QUESTION}]
SCHEMA = {"type": "object", "properties": {}}
RESPONSES_TOOL: Any = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}
MESSAGES_TOOL: Any = {"name": "add", "input_schema": SCHEMA}
CALLS = 'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1.0,"b":2}}\n</tool_call>'
NO_RETRIES = {"max_retries": 0}


def open_ai(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="DUMMY", **options)


def claude(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="DUMMY", **options)


def varied(text: str) -> Callable[[Any], str]:
    return lambda call: f"I say {call.sampling.seed}. {text}"


def test_responses_stream_is_the_response(open_sessions: Any) -> None:
    """Put together by the SDK's own helper, a stream is the unstreamed response of the same seed."""
    session_manager = open_sessions(varied(CALLS))
    asked: dict[str, Any] = {"model": "default", "input": QUESTION, "tools": [RESPONSES_TOOL]}
    asked |= {"extra_body": {"seed": 5}, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with open_ai(session_manager.open(session_id="same")[0]) as sdk:
        whole = sdk.responses.create(**asked)
    with open_ai(session_manager.open(session_id="same")[0]) as sdk, sdk.responses.stream(**asked) as stream:
        put_together = stream.get_final_response()
    assert whole.output_text == put_together.output_text == "I say 5. So."
    [*_, call], [*_, streamed_call] = whole.output, put_together.output
    assert call.type == streamed_call.type == "function_call"
    assert call.arguments == streamed_call.arguments == '{"a": 1.0,"b":2}'
    assert call.call_id == streamed_call.call_id
    [message, *_], [streamed_message, *_] = whole.output, put_together.output
    assert message.type == streamed_message.type == "message"
    assert message.content[0].model_dump(include={"logprobs"}) == streamed_message.content[0].model_dump(
        include={"logprobs"}
    )
    assert whole.usage == put_together.usage


def test_messages_stream_is_the_message(open_sessions: Any) -> None:
    """Put together by the SDK's own helper, a stream is the unstreamed message of the same seed."""
    session_manager = open_sessions(varied(CALLS))
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "max_tokens": 200, "tools": [MESSAGES_TOOL]}
    asked |= {"extra_body": {"seed": 5}}
    with claude(session_manager.open(session_id="same")[0]) as sdk:
        whole = sdk.messages.create(**asked)
    with claude(session_manager.open(session_id="same")[0]) as sdk, sdk.messages.stream(**asked) as stream:
        put_together = stream.get_final_message()
    text, call = whole.content
    assert text.type == "text" and call.type == "tool_use"
    assert (text.text, call.input, whole.stop_reason) == ("I say 5. So.", {"a": 1.0, "b": 2}, "tool_use")
    assert [block.to_dict() for block in put_together.content] == [block.to_dict() for block in whole.content]
    assert (put_together.usage, put_together.stop_reason) == (whole.usage, whole.stop_reason)


@pytest.mark.parametrize("by_id", [False, True])
def test_responses_round_trip(open_sessions: Any, by_id: bool) -> None:
    """A call goes out, its result comes back: the second turn extends the sampled tokens, whoever keeps the history."""
    url, session = open_sessions([CALLS, "It is 3."]).open()
    with open_ai(url) as sdk:
        first = sdk.responses.create(model="default", instructions="Play.", input=QUESTION, tools=[RESPONSES_TOOL])
        call = first.output[-1]
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        history: Any = [result] if by_id else [*ASK, *first.output, result]
        second = sdk.responses.create(
            model="default",
            instructions="Play.",
            input=history,
            tools=[RESPONSES_TOOL],
            previous_response_id=first.id if by_id else openai.omit,
        )
    assert second.output_text == "It is 3."
    one, other = session.snapshot().turns
    assert (other.prefix, other.follows, other.fork) == (one.id, one.id, None)
    assert other.messages[0].content == "Play." and [each.role for each in other.messages].count("system") == 1


def test_messages_round_trip_keeps_the_sampled_arguments(open_sessions: Any) -> None:
    """Arguments come back as an object, written otherwise than they were sampled; no token is changed for it."""
    url, session = open_sessions([CALLS, "It is 3."]).open()
    with claude(url) as sdk:
        asked: dict[str, Any] = {"model": "default", "max_tokens": 200, "tools": [MESSAGES_TOOL]}
        first = sdk.messages.create(messages=ASK, **asked)
        call = first.content[-1]
        assert call.type == "tool_use"
        # As a client in another language writes 1.0.
        echo: Any = {"type": "tool_use", "id": call.id, "name": call.name, "input": {"b": 2, "a": 1}}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
        history: Any = [
            *ASK,
            {"role": "assistant", "content": [first.content[0], echo]},
            {"role": "user", "content": [result]},
        ]
        assert sdk.messages.create(messages=history, **asked).stop_reason == "end_turn"
    one, other = session.snapshot().turns
    assert (other.prefix, other.follows, other.fork) == (one.id, one.id, None)
    assert '{"a": 1.0,"b":2}' in "".join(map(session.token_text, session.snapshot().path_ids(other.node)))


def test_a_response_that_is_not_there_cannot_be_continued(open_sessions: Any) -> None:
    """An unknown id is 404 in OpenAI's shape, and in another session every id is unknown."""
    session_manager = open_sessions(["7"])
    with open_ai(session_manager.open("s1")[0]) as sdk:
        known = sdk.responses.create(model="default", input=QUESTION)
    with open_ai(session_manager.open("s2")[0]) as sdk, pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.create(model="default", input=QUESTION, previous_response_id=known.id)
    assert (caught.value.code, caught.value.param) == ("turn_not_found", "previous_response_id")


def test_instructions_are_those_of_one_request(open_sessions: Any) -> None:
    """Who continues a response does not get its instructions; a system item of the input stays."""
    url, session = open_sessions(["1", "2", "3"]).open()
    with open_ai(url) as sdk:
        rule: Any = {"role": "system", "content": "Rule."}
        first = sdk.responses.create(model="default", instructions="Once.", input=[rule, *ASK])
        second = sdk.responses.create(model="default", input="More.", previous_response_id=first.id)
        sdk.responses.create(model="default", instructions="Now.", input="On.", previous_response_id=second.id)
    shown = [[message.content for message in turn.messages] for turn in session.snapshot().turns]
    assert shown == [
        ["Once.", "Rule.", QUESTION],
        ["Rule.", QUESTION, "1", "More."],
        ["Now.", "Rule.", QUESTION, "1", "More.", "2", "On."],
    ]


def test_prompts_are_counted_without_a_call(open_sessions: Any) -> None:
    """Both ways to count give the length of the prompt that is then asked, and leave no turn."""
    session_manager = open_sessions(["7", "7"])
    url, session = session_manager.open()
    with claude(url) as sdk, open_ai(url) as other:
        counted = sdk.messages.count_tokens(model="default", system="Play.", messages=ASK).input_tokens
        again = other.responses.input_tokens.count(model="default", instructions="Play.", input=QUESTION).input_tokens
        assert session.snapshot().turns == () and session_manager.engine.calls == ()
        message = sdk.messages.create(model="default", system="Play.", messages=ASK, max_tokens=9)
    assert counted == again == message.usage.input_tokens == len(session_manager.engine.calls[0].prompt_ids)


def test_completions_go_on_with_text_and_tokens(open_sessions: Any) -> None:
    """A prompt that goes on with what was sampled extends its tokens, as text and as ids."""
    session_manager = open_sessions(lambda call: "the quick brown fox")
    url, session = session_manager.open()
    with open_ai(url) as sdk:
        asked: dict[str, Any] = {"model": "default", "max_tokens": 4}
        first = sdk.completions.create(prompt="Once", **asked).choices[0].text
        sdk.completions.create(prompt=f"Once{first} and", **asked)
        path = session.snapshot().path_ids(session.snapshot().turns[-1].node)
        sdk.completions.create(prompt=[*path, 7], **asked)
        sdk.completions.create(prompt="Something else", **asked)
        two = sdk.completions.create(prompt=["Once", [7, 8]], n=2, **asked)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    turns = session.snapshot().turns
    assert [turn.follows for turn in turns[1:3]] == [turns[0].id, turns[1].id] == [t.prefix for t in turns[1:3]]
    assert turns[3].fork == "edit" and {turn.fork for turn in turns[:3]} == {None}
    with open_ai(url, **NO_RETRIES) as sdk, pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model="default", prompt=[10**6])
    assert caught.value.param == "prompt"


def test_what_claude_code_sends_is_answered(open_sessions: Any) -> None:
    """Probes, betas, caching and account are accepted, and named where they stand without effect."""
    url, session = open_sessions(["7"], own=True, names=ModelNames(served=("claude-*",))).open()
    for path in ("", "/", "/v1"):
        assert httpx.head(url.removesuffix("/v1") + path).status_code == 200
    cached: Any = {"cache_control": {"type": "ephemeral"}}
    with claude(url) as sdk:
        raw = sdk.beta.messages.with_raw_response.create(
            model="claude-opus",
            max_tokens=200,
            betas=["interleaved-thinking-2025-05-14"],
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: a"},
                {"type": "text", "text": "Play.", **cached},
            ],
            messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION, **cached}]}],
            metadata={"user_id": "me"},
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
    assert raw.headers["x-ludus-ignored"].split(", ") == [
        "metadata",
        "system.x-anthropic-billing-header",
        "system.cache_control",
        "messages.content.cache_control",
        "thinking.budget_tokens",
        "anthropic-beta",
    ]
    [turn] = session.snapshot().turns
    assert [message.content for message in turn.messages] == ["Play.", QUESTION]


def test_errors_are_the_sdks_own(open_sessions: Any) -> None:
    """Refusals become the exceptions that each SDK has for them, on every route."""
    url, _ = open_sessions(["7"]).open()
    with claude(url, **NO_RETRIES) as sdk:
        with pytest.raises(anthropic.BadRequestError) as refused:
            sdk.messages.create(model="default", max_tokens=9, messages=ASK, extra_body={"compaction": {}})
        assert refused.value.body["error"]["code"] == "unsupported_parameter"  # type: ignore[index]
        with pytest.raises(anthropic.NotFoundError):
            sdk.models.retrieve("other")
        assert [model.id for model in sdk.models.list()] == ["default"]
    with claude(url[:-6] + "/v1", **NO_RETRIES) as sdk, pytest.raises(anthropic.AuthenticationError):
        sdk.messages.create(model="default", max_tokens=9, messages=ASK)
    with open_ai(url, **NO_RETRIES) as sdk, pytest.raises(openai.BadRequestError) as unknown:
        sdk.responses.create(model="default", input=QUESTION, extra_body={"inptu": 1})
    assert unknown.value.param == "inptu"


def test_both_forms_of_the_base_url_work_for_claude(open_sessions: Any) -> None:
    """The URL that OpenAI's SDK wants, with /v1 at its end, serves Anthropic's as well."""
    url, session = open_sessions(["7"]).open()
    with anthropic.Anthropic(base_url=url, api_key="DUMMY") as sdk:
        assert sdk.messages.create(model="default", max_tokens=9, messages=ASK).id.startswith("msg_")
        assert sdk.messages.count_tokens(model="default", messages=ASK).input_tokens > 0
        assert [model.id for model in sdk.models.list()] == ["default"]
    assert len(session.snapshot().turns) == 1


def test_claude_without_a_socket(open_sessions: Any) -> None:
    """AsyncAnthropic streams through the client that agents are given."""
    session_manager = open_sessions(["The number is 7."])
    url, _ = session_manager.open()

    async def main() -> str:
        http_client = async_client(session_manager.server)
        async with anthropic.AsyncAnthropic(base_url=url, api_key="DUMMY", http_client=http_client) as sdk:
            asked: dict[str, Any] = {"model": "default", "max_tokens": 200, "messages": ASK}
            async with sdk.messages.stream(**asked) as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(main()) == "The number is 7."
