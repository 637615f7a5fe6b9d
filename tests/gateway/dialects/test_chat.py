"""OpenAI Chat Completions: JSON to nouns and back, without a server."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import AgentError, BackendError
from ludus.gateway.dialects.base import Answer, ParsedRequest, ReadMessages, error_reply
from ludus.gateway.dialects.chat.dialect import CHAT as DIALECT
from ludus.gateway.dialects.chat.fields import REQUEST
from ludus.text.parsers.base import ContentDelta, ReasoningDelta, ToolCallBroken, ToolCallDelta
from ludus.types import ChatRequest, Message, ResponseFormat, Sampled, Sampling, ToolCall, ToolSpec, Turn

USER = {"role": "user", "content": "Guess."}
ADD = {"type": "function", "function": {"name": "add", "description": "Sum.", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ParsedRequest:
    return DIALECT.parse({"model": "default", "messages": [USER], **fields}, Sampling(), ReadMessages())


def refused(**fields: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def turn(reply: Message, *, logprob: float = -0.5) -> Turn:
    sampled = Sampled((7, 8), (logprob, -0.25), (0, 0), "stop", top_logprobs=(((7, logprob), (9, -2.0)), ()))
    return Turn("chatcmpl-1", 1, None, None, None, (Message("user", "Guess."),), reply, sampled, Sampling())


def answer(*replies: Message, logprob: float = -0.5) -> Answer:
    return Answer(
        tuple(turn(reply, logprob=logprob) for reply in replies), 5, {7: "a", 8: "\ufffd", 9: "é"}.__getitem__
    )


def events(raw: bytes) -> list[Any]:
    lines = raw.decode().split("\n\n")
    assert lines.pop() == ""
    written = [line.removeprefix("data: ") for line in lines]
    assert all(line.startswith("data: ") for line in lines)
    return [text if text == "[DONE]" else json.loads(text) for text in written]


def test_messages_become_nouns() -> None:
    """Every role, text parts, tool calls and reasoning arrive as messages."""
    parsed = parse(
        messages=[
            {"role": "system", "content": "Play."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "index": 0, "function": {"name": "add", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    )
    assert parsed.request.messages == (
        Message("system", "Play."),
        Message("user", "ab", name="Ann"),
        Message("assistant", None, reasoning="hm", tool_calls=(ToolCall("c1", "add", "{}"),)),
        Message("tool", "3", tool_call_id="c1"),
    )


def test_fields_beside_sampling_are_honoured() -> None:
    """n, tools, template arguments, streaming with usage, and logprobs end in the parsed request."""
    parsed = parse(
        n=2,
        tools=[ADD],
        tool_choice="auto",
        parallel_tool_calls=True,
        chat_template_kwargs={"enable_thinking": False},
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
    )
    assert parsed == ParsedRequest(
        request=ChatRequest(
            messages=(Message("user", "Guess."),),
            tools=(ToolSpec("add", "Sum.", {"type": "object"}),),
            sampling=Sampling(top_logprobs=3),
            n=2,
            template_kwargs={"enable_thinking": False},
        ),
        model="default",
        stream=True,
        include_usage=True,
        logprobs=True,
        num_new_messages=1,
    )


entries = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from(["user", "assistant", "tool", "nobody"]),
    st.sampled_from(["a", "b", [{"type": "text", "text": "a"}], 1, True]),
    st.sampled_from([{}, {"tool_call_id": "x"}, {"name": "n"}, {"refusal": None}, {"nmae": 1}]),
)


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(entries, max_size=3)), max_size=8))
def test_any_history_is_read_as_if_it_came_first(steps: list[tuple[int, list[Any]]]) -> None:
    """Whatever earlier requests held, a history that goes on, is cut or is edited is read, or refused, as it stands."""
    read, history = ReadMessages(), [USER]
    for kept, new in steps:
        history = history[:kept] + new or [USER]
        outcomes = []
        for known in (read, ReadMessages()):
            try:
                outcomes.append(repr(DIALECT.parse({"messages": history}, Sampling(), known).request))
            except AgentError as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1]


def test_only_new_messages_are_read() -> None:
    """A history that goes on with an earlier one shares its messages; one that was edited shares those before."""
    read = ReadMessages()
    history = [USER, {"role": "assistant", "content": "5"}, {"role": "user", "content": "lower"}]
    first = DIALECT.parse({"messages": history}, Sampling(), read)
    more = [*history, {"role": "assistant", "content": "3"}, {"role": "user", "content": "higher"}]
    second = DIALECT.parse({"messages": more}, Sampling(), read)
    assert (first.num_new_messages, second.num_new_messages) == (3, 2)
    shared = zip(first.request.messages, second.request.messages, strict=False)
    assert all(old is new for old, new in shared)
    edited = DIALECT.parse({"messages": [USER, {"role": "assistant", "content": "6"}, *more[2:]]}, Sampling(), read)
    assert edited.num_new_messages == 4
    assert edited.request.messages[1] == Message("assistant", "6")


SUM = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("choice", "names", "mode", "forced"),
    [
        ("auto", ["add", "sum"], "auto", None),
        ("none", ["add", "sum"], "none", None),
        ("required", ["add", "sum"], "required", None),
        ({"type": "function", "function": {"name": "sum"}}, ["add", "sum"], "required", "sum"),
        (("auto", ["sum"]), ["sum"], "auto", None),
        (("required", ["sum"]), ["sum"], "required", "sum"),
        (("required", ["sum", "add"]), ["add", "sum"], "required", None),
    ],
)
def test_tool_choice(choice: Any, names: list[str], mode: str, forced: str | None) -> None:
    """Every choice says which tools the model sees and whether it must call one; `none` leaves them to be seen."""
    if isinstance(choice, tuple):
        tools = [{"type": "function", "function": {"name": name}} for name in choice[1]]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice[0], "tools": tools}}
    request = parse(tools=[ADD, SUM], tool_choice=choice).request
    assert [tool.name for tool in request.tools] == names
    assert (request.tool_choice, request.forced_tool) == (mode, forced)


def test_constraints_become_fields_of_the_request() -> None:
    """Strict tools, single calls, forms of the answer, biases and effort are handed on."""
    schema = {"type": "object"}
    strict = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    parsed = parse(
        tools=[strict],
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        logit_bias={"7": 5, "3": -100, "9": 0},
        reasoning_effort="low",
    )
    request = parsed.request
    assert request.tools == (ToolSpec("f", "", schema, strict=True),)
    assert (request.parallel_tool_calls, request.response_format) == (False, ResponseFormat(schema))
    assert (request.sampling.logit_bias, request.reasoning_effort) == (((3, -100.0), (7, 5.0)), "low")
    assert parse(response_format={"type": "json_object"}).request.response_format == ResponseFormat()
    assert parse(response_format={"type": "text"}).request.response_format is None


def test_ignored_fields_are_named() -> None:
    """Fields that cannot change a token are accepted, and those that were given are named."""
    parsed = parse(
        user="me", metadata={"a": "b"}, store=None, stream=True, stream_options={"include_obfuscation": True}
    )
    assert parsed.ignored == ("metadata", "user", "stream_options.include_obfuscation")


@pytest.mark.parametrize("name", sorted(REQUEST.refused))
def test_unserved_fields_are_refused_by_name(name: str) -> None:
    """A field that would change tokens and is not served is a 400 that names it; null and its neutral value pass."""
    error = refused(**{name: {"type": "json_object"}})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    harmless = REQUEST.refused[name][0]
    assert parse(**{name: None}) == parse(**{name: harmless}) == parse()


def test_every_field_of_the_sdk_has_a_place() -> None:
    """No field of OpenAI's own request type is unknown here."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    fields = set(CompletionCreateParamsNonStreaming.__annotations__)
    for base in CompletionCreateParamsNonStreaming.__orig_bases__:  # type: ignore[attr-defined]
        fields |= set(base.__annotations__)
    assert fields - REQUEST.known == set()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temprature": 1}, "unknown_parameter", "temprature"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": ["hi"]}, "invalid_type", "messages[0]"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        ({"messages": [{**USER, "colour": 1}]}, "unknown_parameter", "messages[0].colour"),
        ({"messages": [{"role": "assistant", "refusal": "no"}]}, "unsupported_parameter", "messages[0].refusal"),
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"function": {}}]}, "missing_required_parameter", "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "unsupported_parameter", "tools[0].type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [ADD], "tool_choice": "always"}, "invalid_value", "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "custom"}}, "invalid_value", "tool_choice.type"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sum"}}},
            "invalid_value",
            "tool_choice",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"07": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"7": 101}}, "invalid_value", "logit_bias.7"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "unknown_parameter", "stream_options.x"),
        ({"top_logprobs": 1}, "invalid_value", "top_logprobs"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"n": 0}, "invalid_value", "n"),
        ({"model": 5}, "invalid_type", "model"),
        ({"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
    ],
)
def test_bad_requests_are_refused_with_code_and_param(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad request has a typed code and names what is at fault."""
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_parts_that_are_no_text_are_refused(kind: str) -> None:
    """Images and other parts are refused, naming the part."""
    error = refused(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind}]}])
    assert (error.code, error.param) == ("unsupported_content", "messages[0].content[1]")


def test_response_has_openais_shape() -> None:
    """The unstreamed body validates as the SDK's own ChatCompletion, values where they belong."""
    from openai.types.chat import ChatCompletion

    reply = Message("assistant", "7", reasoning="hm", tool_calls=(ToolCall("c1", "add", '{"a": 1}'),))
    body = DIALECT.response(answer(reply), parse(logprobs=True, top_logprobs=2), "tiny")
    completion = ChatCompletion.model_validate(body, strict=True)
    choice = completion.choices[0]
    assert (completion.id, completion.model, choice.finish_reason) == ("chatcmpl-1", "tiny", "tool_calls")
    assert (choice.message.content, choice.message.reasoning_content) == ("7", "hm")  # type: ignore[attr-defined]
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'  # type: ignore[union-attr]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        5,
        2,
        7,
    )
    assert choice.logprobs is not None and choice.logprobs.content is not None
    first, second = choice.logprobs.content
    assert (first.token, first.bytes, first.logprob) == ("a", [97], -0.5)
    assert (first.top_logprobs[1].token, first.top_logprobs[1].bytes) == ("é", [195, 169])
    assert (second.bytes, second.top_logprobs) == (None, [])


def test_logprob_without_a_number_in_json() -> None:
    """A token that cannot occur has OpenAI's least logprob, not an infinity that JSON lacks."""
    body = DIALECT.response(answer(Message("assistant", "7"), logprob=float("-inf")), parse(logprobs=True), "tiny")
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_choices_tell_their_turn_ids() -> None:
    """Every choice carries the id under which it is recorded, so that it says so without its completion."""
    given = answer(Message("assistant", "1"), Message("assistant", "2"))
    body = DIALECT.response(given, parse(n=2), "tiny")
    assert [choice["turn_id"] for choice in body["choices"]] == [turn.id for turn in given.turns]
    assert body["choices"][0]["turn_id"] == body["id"]


def test_stream_adds_up_to_the_response() -> None:
    """Role first, deltas in OpenAI's shape, a finish reason, usage when asked for, then the end mark."""
    reply = Message("assistant", "ab", reasoning="hm", tool_calls=(ToolCall("c1", "add", '{"a": 1}'),))
    writer = DIALECT.writer(parse(stream=True, stream_options={"include_usage": True}), "tiny", 12.7)
    raw = writer.start(("chatcmpl-1",), 5)
    deltas = (
        ReasoningDelta("hm"),
        ContentDelta("a"),
        ContentDelta("b"),
        ToolCallDelta(0, "c1", "add", ""),
        ToolCallDelta(0, None, None, '{"a": 1}'),
    )
    for delta in deltas:
        raw += writer.delta(0, delta)
    written = events(raw + writer.finish(answer(reply)))
    assert written.pop() == "[DONE]"
    usage = written.pop()
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 7)
    assert all(chunk["usage"] is None for chunk in written)
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in written} == {("chatcmpl-1", 12, "tiny")}
    assert [chunk["choices"][0]["delta"] for chunk in written] == [
        {"role": "assistant"},
        {"reasoning_content": "hm"},
        {"content": "a"},
        {"content": "b"},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in written][-2:] == [None, "tool_calls"]


def test_a_call_that_broke_is_named_in_the_last_chunk() -> None:
    """What was begun as a call and is none is named by its index, since a stream cannot take it back."""
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    raw = writer.delta(0, ToolCallDelta(0, "c1", "add", "{")) + writer.delta(0, ToolCallBroken(0))
    written = events(raw + writer.delta(0, ContentDelta("{!")) + writer.finish(answer(Message("assistant", "{!"))))[:-1]
    assert written[-1]["choices"][0]["ludus"] == {"undecoded_tool_calls": [0]}
    assert written[-1]["choices"][0]["finish_reason"] == "stop"


def test_stream_without_deltas_tells_the_whole_reply() -> None:
    """A replayed turn, for which no delta comes, is still streamed in full; an empty reply as empty text."""
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    written = events(writer.start(("chatcmpl-1",), 5) + writer.finish(answer(Message("assistant", "7"))))
    assert [chunk["choices"][0]["delta"] for chunk in written[:-1]] == [{"role": "assistant"}, {"content": "7"}, {}]
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    written = events(writer.start(("chatcmpl-1",), 5) + writer.finish(answer(Message("assistant", ""))))
    assert written[1]["choices"][0]["delta"] == {"content": ""}


def test_stream_with_logprobs_tells_them_once() -> None:
    """The logprobs of all sampled tokens come with the last chunk of their choice."""
    parsed = parse(stream=True, logprobs=True)
    writer = DIALECT.writer(parsed, "tiny", 0.0)
    finished = answer(Message("assistant", "7"))
    written = events(writer.start(("chatcmpl-1",), 5) + writer.finish(finished))[:-1]
    assert [chunk["choices"][0]["logprobs"] for chunk in written[:-1]] == [None, None]
    whole = DIALECT.response(finished, parsed, "tiny")
    assert written[-1]["choices"][0]["logprobs"] == whole["choices"][0]["logprobs"]


def test_token_ids_as_vllms_clients_ask_for_them() -> None:
    """Those of the prompt beside the choices, those of each choice in it, streamed or not; logprobs by id."""
    parsed = parse(stream=True, logprobs=True, return_token_ids=True, return_tokens_as_token_ids=True)
    finished = replace(answer(Message("assistant", "7")), given_ids=lambda turn: (3, 1, len(turn.id)))
    whole, sampled = DIALECT.response(finished, parsed, "tiny"), list(finished.turns[0].sampled.token_ids)
    assert whole["prompt_token_ids"] == [3, 1, 10] and whole["choices"][0]["token_ids"] == sampled
    named = [token["token"] for token in whole["choices"][0]["logprobs"]["content"]]
    assert named == [f"token_id:{token}" for token in sampled]
    writer = DIALECT.writer(parsed, "tiny", 0.0)
    last = events(writer.start(("chatcmpl-1",), 5) + writer.finish(finished))[-2]
    assert last["prompt_token_ids"] == [3, 1, 10] and last["choices"][0]["token_ids"] == sampled
    assert "prompt_token_ids" not in DIALECT.response(finished, parse(), "tiny")


def test_errors_have_openais_shape() -> None:
    """An agent's fault keeps its code and param; an engine's is a 500 that may be tried again."""
    fault = error_reply(AgentError("too long", code="context_length_exceeded", param="messages"))
    assert DIALECT.vendor.error(fault) == {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    failure = error_reply(BackendError("out of memory"))
    assert (failure.status, failure.kind, failure.may_retry) == (500, "server_error", True)
    assert not error_reply(KeyError("x")).may_retry
    [written, end] = events(DIALECT.writer(parse(stream=True), "tiny", 0.0).error(failure))
    assert (written["error"]["code"], end) == ("backend_error", "[DONE]")
