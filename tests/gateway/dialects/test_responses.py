"""OpenAI Responses: JSON to nouns and back, without a server."""

from __future__ import annotations

from typing import Any, get_args

import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_includable import ResponseIncludable

from ludus.errors import AgentError, BackendError
from ludus.gateway.dialects.base import ParsedRequest, ReadMessages, error_reply
from ludus.gateway.dialects.responses.dialect import RESPONSES as DIALECT
from ludus.gateway.dialects.responses.fields import INCLUDED, INCLUDES, REQUEST
from ludus.text.parsers.base import ContentDelta, ReasoningDelta, ToolCallBroken, ToolCallDelta
from ludus.types import Message, ResponseFormat, Sampling, ToolCall, ToolSpec
from tests.gateway.dialects.replies import answer_of, events

ADD: dict[str, Any] = {"type": "function", "name": "add", "description": "Sum.", "parameters": {"type": "object"}}
REPLY = (ReasoningDelta("hm"), ContentDelta("7"), ToolCallDelta(0, "c1", "add", '{"a": 1}'))
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)


def parse(**fields: Any) -> ParsedRequest:
    return DIALECT.parse({"model": "default", "input": "Guess.", **fields}, Sampling(), ReadMessages())


def refused(**fields: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def test_items_become_messages() -> None:
    """What an assistant says in one turn is one message, thinking begins a new one; results are messages of tools."""
    text = {"type": "output_text", "text": "So", "annotations": [], "logprobs": []}
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [text]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1.0}', "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "o"}, {"type": "summary_text", "text": "k"}],
        },
        {"type": "message", "role": "assistant", "content": "1"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": ""}]},
        {"role": "assistant", "content": "2"},
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
    ]
    parsed = parse(input=items, instructions="Play.")
    assert parsed.request.messages == (
        Message("system", "Play."),
        Message("user", "a"),
        Message("assistant", "So", "hm", (ToolCall("c1", "add", '{"a":1.0}'), ToolCall("c2", "add", "{}"))),
        Message("tool", "3", tool_call_id="c1"),
        Message("tool", "4", tool_call_id="c2"),
        Message("assistant", "1", "ok"),
        Message("assistant", "2", ""),
        Message("developer", "xy"),
    )
    assert (parsed.request.num_instructions, parsed.num_new_messages) == (1, len(items))


def test_thinking_that_cannot_be_read_leaves_no_message() -> None:
    """A reasoning item of another server, which is encrypted, is named as ignored and changes nothing."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    parsed = parse(input=[{"role": "user", "content": "a"}, item])
    assert parsed.request.messages == (Message("user", "a"),)
    assert parsed.ignored == ("input.encrypted_content",)


def test_a_turn_is_continued_by_any_of_its_ids() -> None:
    """The response's id names the turn; instructions are those of this request alone."""
    request = parse(previous_response_id="resp_12", instructions="Play.", input=[]).request
    assert (request.continues, request.num_instructions, request.messages) == (
        "chatcmpl-12",
        1,
        (Message("system", "Play."),),
    )


def test_fields_are_honoured() -> None:
    """Tools, forms, limits, effort, logprobs and sampling end in the parsed request."""
    schema = {"type": "object"}
    parsed = parse(
        tools=[{**ADD, "strict": True}],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "medium"},
        reasoning={"effort": "low", "summary": "auto", "context": "auto"},
        max_output_tokens=9,
        include=[INCLUDED],
        top_logprobs=3,
        temperature=0.5,
        stream=True,
        truncation="disabled",
        metadata={"a": "b"},
        chat_template_kwargs={"x": 1},
        seed=4,
    )
    request = parsed.request
    assert request.tools == (ToolSpec("add", "Sum.", schema, strict=True),)
    assert (request.tool_choice, request.forced_tool, request.parallel_tool_calls) == ("required", "add", False)
    assert (request.response_format, request.reasoning_effort) == (ResponseFormat(schema), "low")
    assert request.sampling == Sampling(temperature=0.5, top_logprobs=3, max_new_tokens=9, seed=4)
    assert (request.template_kwargs, parsed.stream, parsed.logprobs, parsed.ignored) == (
        {"x": 1},
        True,
        True,
        ("text.verbosity",),
    )
    body = DIALECT.response(answer_of(REPLY), parsed, "tiny")
    assert (body["metadata"], body["text"]["format"]["name"], body["reasoning"]["effort"]) == ({"a": "b"}, "x", "low")
    assert (body["tools"][0]["name"], body["tool_choice"]["name"], body["max_output_tokens"]) == ("add", "add", 9)


def test_allowed_tools_are_those_that_are_shown() -> None:
    """A choice among some tools leaves the others out."""
    tools = [ADD, {**ADD, "name": "sum"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sum"}]}
    request = parse(tools=tools, tool_choice=choice).request
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["sum"], "auto")


def test_ignored_fields_are_named() -> None:
    """What cannot change a token is accepted and named, wherever it stands."""
    part = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    parsed = parse(
        input=[{"role": "user", "content": [part], "status": "completed"}],
        store=False,
        user="me",
        include=["reasoning.encrypted_content"],
    )
    assert parsed.ignored == (
        "store",
        "user",
        "include.reasoning.encrypted_content",
        "input.status",
        "input.content.prompt_cache_breakpoint",
    )


def test_every_field_of_the_sdk_has_a_place() -> None:
    """No field and no include of OpenAI's own request type is unknown here."""
    assert {*ResponseCreateParamsBase.__annotations__, "stream"} - REQUEST.known == set()
    assert set(get_args(ResponseIncludable)) == {INCLUDED, *INCLUDES}


@pytest.mark.parametrize("name", sorted(REQUEST.refused))
def test_unserved_fields_are_refused_by_name(name: str) -> None:
    """A field that would change tokens and is not served is a 400 that names it; null and its neutral value pass."""
    error = refused(**{name: {"type": "x"}})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert parse(**{name: None}) == parse(**{name: REQUEST.refused[name][0]}) == parse()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"inptu": 1}, "unknown_parameter", "inptu"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": ["hi"]}, "invalid_type", "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"role": "user", "content": 5}]}, "invalid_type", "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "computer_call"}]}, "invalid_value", "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "missing_required_parameter", "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "invalid_value", "input[0].content[0].type"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "unsupported_parameter", "tools[0].defer_loading"),
        ({"tools": [ADD], "tool_choice": {"type": "mcp"}}, "invalid_value", "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "x"}}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "invalid_value", "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "unsupported_parameter", "reasoning.mode"),
        ({"include": ["everything"]}, "invalid_value", "include[0]"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"metadata": 5}, "invalid_type", "metadata"),
    ],
)
def test_bad_requests_are_refused_with_code_and_param(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad request has a typed code and names what is at fault."""
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio", "refusal"])
def test_parts_that_are_no_text_are_refused(kind: str) -> None:
    """Images and other parts are refused, naming the part."""
    error = refused(input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": kind}]}])
    assert (error.code, error.param) == ("unsupported_content", "input[0].content[1]")


@pytest.mark.parametrize("summary", [None, "auto"])
def test_response_has_openais_shape(summary: str | None) -> None:
    """The body validates as the SDK's own Response, values where they belong; a summary is the thinking itself."""
    parsed = parse(include=[INCLUDED], tools=[{**ADD, "strict": None}], reasoning={"summary": summary})
    response = Response.model_validate(DIALECT.response(answer_of(REPLY), parsed, "tiny"), strict=True)
    thinking, message, call = response.output
    assert thinking.type == "reasoning" and message.type == "message" and call.type == "function_call"
    [written] = thinking.summary if summary else thinking.content or []
    assert (written.text, response.output_text, call.arguments) == ("hm", "7", '{"a": 1}')
    assert (response.id, response.status, response.incomplete_details) == ("resp_1", "completed", None)
    [part] = message.content
    assert part.type == "output_text" and part.logprobs is not None
    assert [(token.token, token.bytes, token.logprob) for token in part.logprobs] == [
        ("a", [97], -0.5),
        ("\ufffd", [], -0.25),
    ]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (5, 2, 7)
    assert response.usage.input_tokens_details.cached_tokens == 2


def test_a_cut_answer_is_incomplete() -> None:
    """An answer that met its limit says so, and its last item too."""
    body = DIALECT.response(answer_of(REPLY[:2], stop_reason="length"), parse(), "tiny")
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in body["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize("asked", [{}, {"reasoning": {"summary": "auto"}}, {"include": [INCLUDED]}])
def test_events_have_openais_shapes_and_order(asked: dict[str, Any]) -> None:
    """Every event validates as one of the SDK's own; they come in OpenAI's order."""
    writer = DIALECT.writer(parse(stream=True, **asked), "tiny", 12.7)
    raw = writer.start(("chatcmpl-1",), 5) + b"".join(writer.delta(0, delta) for delta in REPLY)
    written = events(raw + writer.finish(answer_of(REPLY)))
    for each in written:
        EVENT.validate_python(each, strict=True)
    part = "reasoning_summary_part" if "reasoning" in asked else "content_part"
    text = "reasoning_summary_text" if "reasoning" in asked else "reasoning_text"
    assert [each["type"].removeprefix("response.") for each in written] == [
        "created",
        "in_progress",
        "output_item.added",
        f"{part}.added",
        f"{text}.delta",
        f"{text}.done",
        f"{part}.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_a_call_that_broke_is_an_incomplete_item() -> None:
    """What was begun as a call and is none is closed as incomplete, and stands in no output."""
    deltas = (ToolCallDelta(0, "c1", "add", "{"), ToolCallBroken(0), ContentDelta("{!"))
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    raw = writer.start(("chatcmpl-1",), 5) + b"".join(writer.delta(0, delta) for delta in deltas)
    written = events(raw + writer.finish(answer_of(deltas)))
    [broken, text] = [each["item"] for each in written if each["type"] == "response.output_item.done"]
    assert (broken["type"], broken["status"]) == ("function_call", "incomplete")
    assert written[-1]["response"]["output"] == [text]


def test_errors_have_openais_shape() -> None:
    """Before the stream an error object; in it an event with the code, then the failed response."""
    failure = error_reply(BackendError("out of memory"))
    assert DIALECT.vendor.error(failure)["error"]["code"] == "backend_error"
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    [written] = events(writer.error(failure))
    assert (written["type"], written["code"]) == ("error", "backend_error")
    begun = events(writer.start(("chatcmpl-1",), 5) + writer.delta(0, ContentDelta("a")) + writer.error(failure))
    for each in begun:
        EVENT.validate_python(each, strict=True)
    assert begun[-1]["response"]["error"] == {"code": "server_error", "message": "backend_error: out of memory"}


def test_prompts_are_counted() -> None:
    """The count has the SDK's shape."""
    from openai.types.responses.input_token_count_response import InputTokenCountResponse

    assert InputTokenCountResponse.model_validate(DIALECT.counter.response(7), strict=True).input_tokens == 7
