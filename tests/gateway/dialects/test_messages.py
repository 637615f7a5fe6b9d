"""Anthropic Messages: JSON to nouns and back, without a server."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from anthropic.types import Message as SdkMessage
from anthropic.types import ModelInfo, RawMessageStreamEvent
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaParams
from anthropic.types.beta_error_response import BetaErrorResponse
from anthropic.types.message_create_params import MessageCreateParamsBase

from ludus.errors import AgentError, BackendError
from ludus.gateway.dialects.base import ParsedRequest, ReadMessages, error_reply
from ludus.gateway.dialects.messages.dialect import MESSAGES as DIALECT
from ludus.gateway.dialects.messages.fields import REQUEST
from ludus.text.parsers.base import ContentDelta, ReasoningDelta, ToolCallBroken, ToolCallDelta
from ludus.types import Message, ResponseFormat, Sampling, ToolCall, ToolSpec
from tests.gateway.dialects.replies import answer_of, events

USER = {"role": "user", "content": "Guess."}
ADD: dict[str, Any] = {"name": "add", "description": "Sum.", "input_schema": {"type": "object"}}
REPLY = (ReasoningDelta("hm"), ContentDelta("7"), ToolCallDelta(0, "c1", "add", '{"a": 1}'))
EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)


def parse(**fields: Any) -> ParsedRequest:
    body = {"model": "default", "max_tokens": 9, "messages": [USER], **fields}
    return DIALECT.parse(body, Sampling(), ReadMessages())


def refused(**fields: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_blocks_become_messages() -> None:
    """An assistant's blocks are one message; results of tools are messages, the user's text one of its own."""
    parsed = parse(
        system=[
            {"type": "text", "text": "Play", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "."},
        ],
        messages=[
            USER,
            said(
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "So", "citations": None},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": "é"}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
            ),
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ],
            },
            {"role": "system", "content": "Go on."},
            said({"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": ""}),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "is_error": True}]},
        ],
    )
    calls = (ToolCall("c1", "add", '{"a": 1, "b": "é"}'), ToolCall("c2", "add", "{}"))
    assert parsed.request.messages == (
        Message("system", "Play."),
        Message("user", "Guess."),
        Message("assistant", "So", "hm", calls),
        Message("tool", "3", tool_call_id="c1"),
        Message("tool", "4", tool_call_id="c2"),
        Message("user", "ab"),
        Message("system", "Go on."),
        Message("assistant", ""),
        Message("tool", "", tool_call_id="c3"),
    )
    assert parsed.ignored == ("system.cache_control", "messages.content.data", "messages.content.is_error")


def test_only_new_messages_are_read() -> None:
    """A history that goes on with an earlier one shares its messages, although one entry may be several."""
    read = ReadMessages()
    results = [{"type": "tool_result", "tool_use_id": name, "content": "3"} for name in ("c1", "c2")]
    use = [{"type": "tool_use", "id": name, "name": "add", "input": {}} for name in ("c1", "c2")]
    history = [USER, said(*use), {"role": "user", "content": results}]
    body: dict[str, Any] = {"max_tokens": 9, "messages": history}
    first = DIALECT.parse(body, Sampling(), read)
    more = [*history, said({"type": "text", "text": "7"}), USER]
    second = DIALECT.parse({**body, "messages": more}, Sampling(), read)
    assert (first.num_new_messages, second.num_new_messages, len(second.request.messages)) == (3, 2, 6)
    shared = zip(first.request.messages, second.request.messages, strict=False)
    assert all(old is new for old, new in shared)


def test_fields_are_honoured() -> None:
    """Tools, choices, limits, thinking, forms and sampling end in the parsed request."""
    schema = {"type": "object"}
    parsed = parse(
        tools=[{**ADD, "strict": True, "type": "custom"}],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        thinking={"type": "enabled", "budget_tokens": 5},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        temperature=0.5,
        top_k=3,
        stream=True,
        seed=4,
    )
    request = parsed.request
    assert request.tools == (ToolSpec("add", "Sum.", schema, strict=True),)
    assert (request.tool_choice, request.forced_tool, request.parallel_tool_calls) == ("required", "add", False)
    assert (request.response_format, request.reasoning_effort) == (ResponseFormat(schema), "low")
    assert request.thinking_budget == 5
    assert request.sampling == Sampling(temperature=0.5, top_k=3, max_new_tokens=9, stop=("END",), seed=4)
    assert (parsed.stream, parsed.ignored) == (True, ())
    assert parse(output_format={"type": "json_schema", "schema": schema}).request.response_format is not None


@pytest.mark.parametrize(("kind", "mode"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_tool_choice(kind: str, mode: str) -> None:
    """Each choice has its word."""
    assert parse(tools=[ADD], tool_choice={"type": kind}).request.tool_choice == mode


@pytest.mark.parametrize(
    ("thinking", "effort", "budget"),
    [
        ({"type": "disabled"}, "none", None),
        ({"type": "adaptive", "display": "summarized"}, None, None),
        ({"type": "enabled", "budget_tokens": 1024}, None, 1024),
    ],
)
def test_thinking(thinking: Any, effort: str | None, budget: int | None) -> None:
    """Thinking is switched off, left to the model, or given a budget."""
    request = parse(thinking=thinking).request
    assert (request.reasoning_effort, request.thinking_budget) == (effort, budget)


def test_what_claude_code_sends_is_accepted() -> None:
    """Caching, account and edits that keep everything change nothing; the account of the request is no instruction."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"}
    parsed = parse(
        system=[billing, {"type": "text", "text": "You code.", **cached}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **cached}]}],
        tools=[{**ADD, **cached, "eager_input_streaming": True, "defer_loading": False}],
        metadata={"user_id": "me"},
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        service_tier="auto",
    )
    assert parsed.request.messages == (Message("system", "You code."), Message("user", "hi"))
    assert parsed.ignored == (
        "metadata",
        "service_tier",
        "system.x-anthropic-billing-header",
        "system.cache_control",
        "messages.content.cache_control",
        "tools.cache_control",
        "tools.eager_input_streaming",
    )


def test_every_field_of_the_sdk_has_a_place() -> None:
    """No field of Anthropic's own request types is unknown here; betas are a header."""
    fields = {*MessageCreateParamsBase.__annotations__, *BetaParams.__annotations__, "stream"}
    assert fields - REQUEST.known == {"betas"}


@pytest.mark.parametrize("name", sorted(REQUEST.refused))
def test_unserved_fields_are_refused_by_name(name: str) -> None:
    """A field that would change tokens and is not served is a 400 that names it; null and its neutral value pass."""
    error = refused(**{name: {"type": "x"}})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert parse(**{name: None}) == parse(**{name: REQUEST.refused[name][0]}) == parse()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokes": 1}, "unknown_parameter", "max_tokes"),
        ({"max_tokens": None}, "missing_required_parameter", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{**USER, "name": "Ann"}]}, "unknown_parameter", "messages[0].name"),
        ({"messages": [USER, {"role": "assistant", "content": "{"}]}, "unsupported_parameter", "messages[1]"),
        (
            {"messages": [said({"type": "tool_use", "id": "c"})]},
            "missing_required_parameter",
            "messages[0].content[0].name",
        ),
        (
            {"messages": [said({"type": "tool_use", "id": "c", "name": "f", "input": "x"})]},
            "invalid_type",
            "messages[0].content[0].input",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{**ADD, "input_examples": [{}]}]}, "unsupported_parameter", "tools[0].input_examples"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "x"}}, "invalid_value", "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "x"}}, "invalid_value", "tool_choice.type"),
        ({"thinking": {"type": "x"}}, "invalid_value", "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "invalid_value", "thinking.budget_tokens"),
        ({"output_config": {"task_budget": {}}}, "unsupported_parameter", "output_config.task_budget"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "unsupported_parameter",
            "context_management.edits[0]",
        ),
        ({"stop_sequences": [5]}, "invalid_type", "stop_sequences"),
        ({"system": 5}, "invalid_type", "system"),
    ],
)
def test_bad_requests_are_refused_with_code_and_param(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad request has a typed code and names what is at fault."""
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "server_tool_use", "tool_use"])
def test_blocks_that_are_no_text_are_refused(kind: str) -> None:
    """Images and other blocks are refused in a user's message, naming the block; so are they in a result."""
    error = refused(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind}]}])
    assert (error.code, error.param) == ("unsupported_content", "messages[0].content[1]")
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": kind}]}
    assert refused(messages=[{"role": "user", "content": [result]}]).param == "messages[0].content[0].content[0]"


def test_message_has_anthropics_shape() -> None:
    """The body validates as the SDK's own Message, values where they belong."""
    message = SdkMessage.model_validate(DIALECT.response(answer_of(REPLY), parse(), "tiny"), strict=True)
    thinking, text, call = message.content
    assert thinking.type == "thinking" and text.type == "text" and call.type == "tool_use"
    assert (thinking.thinking, bool(thinking.signature), text.text, call.input) == ("hm", True, "7", {"a": 1})
    assert (message.id, message.model, message.stop_reason) == ("msg_1", "tiny", "tool_use")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 2, 2)


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        ({"stop_reason": "stop"}, "end_turn", None),
        ({"stop_reason": "stop", "stop_string": "END"}, "stop_sequence", "END"),
        ({"stop_reason": "stop", "stop_string": "</tool_call>"}, "end_turn", None),
        ({"stop_reason": "length"}, "max_tokens", None),
    ],
)
def test_stop_reasons(end: Any, reason: str, sequence: str | None) -> None:
    """Each end of an answer has its word."""
    body = DIALECT.response(answer_of(REPLY[:2], **end), parse(stop_sequences=["END"]), "tiny")
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


def test_events_have_anthropics_shapes_and_order() -> None:
    """Every event but the ping validates as one of the SDK's own; they come in Anthropic's order."""
    writer = DIALECT.writer(parse(stream=True), "tiny", 12.7)
    raw = writer.start(("chatcmpl-1",), 5) + b"".join(writer.delta(0, delta) for delta in REPLY)
    written = events(raw + writer.finish(answer_of(REPLY)))
    assert written[0]["message"]["usage"]["input_tokens"] == 5
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    signed = [*block[:2], "content_block_delta", block[2]]
    assert [each["type"] for each in written] == [
        *("message_start", "ping"),
        *(*signed, *block, *block),
        *("message_delta", "message_stop"),
    ]
    for each in written:
        if each["type"] != "ping":
            EVENT.validate_python(each, strict=True)


def test_a_call_that_broke_is_closed_and_its_text_follows() -> None:
    """What was begun as a call and is none is closed; the message ends as an answer."""
    deltas = (ToolCallDelta(0, "c1", "add", "{"), ToolCallBroken(0), ContentDelta("{!"))
    writer = DIALECT.writer(parse(stream=True), "tiny", 0.0)
    raw = writer.start(("chatcmpl-1",), 5) + b"".join(writer.delta(0, delta) for delta in deltas)
    written = events(raw + writer.finish(answer_of(deltas)))
    assert [each["index"] for each in written if each["type"] == "content_block_stop"] == [0, 1]
    assert written[-2]["delta"]["stop_reason"] == "end_turn"
    assert DIALECT.response(answer_of(deltas), parse(), "tiny")["content"] == [{"type": "text", "text": "{!"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
    ],
)
def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    """An agent's fault has the class of its status and keeps its code; an engine's is an api_error."""
    body = DIALECT.vendor.error(error_reply(AgentError("no", status=status, code="why", param="x")))
    BetaErrorResponse.model_validate(body, strict=True)
    assert (body["error"]["type"], body["error"]["message"], body["error"]["code"]) == (kind, "no", "why")
    failure = error_reply(BackendError("out of memory"))
    assert DIALECT.vendor.error(failure)["error"]["type"] == "api_error"
    raw = DIALECT.writer(parse(stream=True), "tiny", 0.0).error(failure)
    name, data, *_ = raw.decode().split("\n")
    assert name == "event: error" and json.loads(data.removeprefix("data: ")) == DIALECT.vendor.error(failure)


def test_models_and_counts_have_anthropics_shapes() -> None:
    """A model, a list of them, and the length of a prompt, for which no limit needs to be named."""
    model = DIALECT.vendor.model("tiny")
    ModelInfo.model_validate_json(json.dumps(model), strict=True)
    assert DIALECT.vendor.models([model])["first_id"] == "tiny"
    counter = DIALECT.counter
    parsed = counter.parse({"messages": [USER]}, Sampling(), ReadMessages())
    assert (parsed.request.messages, counter.response(7)) == ((Message("user", "Guess."),), {"input_tokens": 7})
