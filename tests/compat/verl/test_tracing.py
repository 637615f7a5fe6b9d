"""Functions of a loop as spans, and calls of tools found in token ids."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from ludus.agents.tools.schema import OpenAIFunctionToolSchema
from ludus.compat.verl.parser import FunctionCall, HermesToolParser, KimiToolParser, Qwen3XMLToolParser, ToolParser
from ludus.compat.verl.server import TokenOutput
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.compat.verl.tracing import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from ludus.errors import UserError
from ludus.runs.spans import SpanLog, collect_spans
from ludus.text.chat import ChatText


class Holds:
    """Something that cannot be copied, and holds itself."""

    def __init__(self) -> None:
        self.lock, self.itself = threading.Lock(), self

    @rollout_trace_op
    async def awaited(self, ids: list[int], more: Any = None) -> TokenOutput:
        return TokenOutput([*ids, 4], [-0.5], "stop")

    @rollout_trace_op
    def at_once(self, other: Any) -> float:
        raise ValueError("no")


def test_functions_are_spans() -> None:
    """With their arguments and what they return as plain values, and what they raise; nothing else about them
    changes."""
    log, holder = SpanLog(), Holds()
    with collect_spans(log):
        output = asyncio.run(holder.awaited([3], more=holder))
        assert isinstance(output, TokenOutput) and output.stop_reason == "stop"
        with pytest.raises(ValueError, match="no"), rollout_trace_attr(step=3, name="agent_loop"):
            holder.at_once(holder)
        with rollout_trace_attr(step=3, trace=False):
            pass
    first, second, third = log.snapshot()
    assert first.name == "Holds.awaited" and first.inputs["ids"] == [3] and first.outputs == [3, 4]
    assert second.error == "ValueError: no"
    assert third.name == "agent_loop" and third.inputs == {"step": 3, "name": "agent_loop"}


def test_calls_are_found_in_tokens(text: ChatText, caplog: pytest.LogCaptureFixture) -> None:
    """Calls and the text beside them; what is none stays in the text, and the log says so."""
    tokenizer = LoopTokenizer(text)
    parser = ToolParser.get_tool_parser("hermes", tokenizer)
    ids = tokenizer.encode('Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>')
    content, (call,) = asyncio.run(parser.extract_tool_calls(ids))
    assert (content, call.name, call.arguments) == ("Well.", "f", '{"a": 1}')
    with caplog.at_level(logging.WARNING):
        broken, calls = asyncio.run(parser.extract_tool_calls(tokenizer.encode("<tool_call>\n{no\n</tool_call>")))
    assert not calls and "{no" in broken and "Failed to decode tool call" in caplog.text
    assert "gpt_oss" in repr(ToolParser.get_tool_parser("gpt-oss", tokenizer))
    with pytest.raises(UserError, match="Unknown tool_parser 'seed'"):
        ToolParser.get_tool_parser("seed", tokenizer)


class _ForeignTokenizer:
    """Of another library: it can decode."""

    eos_token = "<end>"

    def __init__(self, text: str) -> None:
        self.text = text

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return self.text


KIMI = (
    "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
)


def test_parsers_have_classes_and_take_any_tokenizer() -> None:
    """By class or by name, with one that merely decodes; what ends the turn is no part of the text."""
    for parser in (
        KimiToolParser(_ForeignTokenizer(KIMI)),
        ToolParser.get_tool_parser("kimi", _ForeignTokenizer(KIMI)),
    ):
        content, (call,) = asyncio.run(parser.extract_tool_calls([1]))
        assert (content, call.name, call.arguments, call.tool_call_id) == ("Well.", "f", '{"a": 1}', "functions.f:0")
    for end in ("<end>", "<|im_end|>"):
        assert asyncio.run(HermesToolParser(_ForeignTokenizer("Yes." + end)).extract_tool_calls([1])) == ("Yes.", [])
    assert KimiToolParser(None).stop_token_ids == []


def tool(name: str, **properties: str) -> OpenAIFunctionToolSchema:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return OpenAIFunctionToolSchema.model_validate({"function": {"name": name, "parameters": parameters}})


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("functions.get_weather:0", "get_weather"),
        ("call-get-weather-0", "get_weather"),
        ("call_17", "get_weather"),  # of all tools it alone needs nothing that is not given
        ("functions.weather:0", "get_weather"),
        ("functions.search:0", "search"),
    ],
)
def test_a_tool_that_kimis_id_names_otherwise_is_found(written: str, found: str) -> None:
    """As verl does: by its name anywhere in the id, else by what it needs. The id stays as the model wrote it."""
    tokenizer = _ForeignTokenizer(KIMI.replace("functions.f:0", written).replace('{"a": 1}', '{"city":"Rome"}'))
    tools = [tool("get_weather", city="string"), tool("search", query="string"), tool("noop")]
    _, (call,) = asyncio.run(KimiToolParser(tokenizer).extract_tool_calls([1], tools))
    assert (call.name, call.tool_call_id, call.arguments) == (found, written, '{"city": "Rome"}')


def test_the_inside_of_a_qwen_call_is_read_by_itself() -> None:
    """Values by their schema, none of them run as code; an argument that was cut off is left out."""
    read = Qwen3XMLToolParser(None)._parse_xml_function_call
    call = read("f><parameter=items>[1, 2]</parameter><parameter=more", [tool("f", items="array")])
    assert call is not None and call.arguments == '{"items": [1, 2]}'
    call = read("f><parameter=items>open('x')</parameter>", [tool("f", items="array")])
    assert call is not None and json.loads(call.arguments) == {"items": "open('x')"}
    call = read("f><parameter=a>value</parameter>", None)
    assert call is not None and (call.name, call.arguments) == ("f", '{"a": "value"}')
    assert read("f", []) is None


def test_a_parser_of_ones_own_has_a_name() -> None:
    """Loops that ask for it get it."""

    @ToolParser.register("shouting")
    class Shouting(ToolParser):
        async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> tuple[str, list[FunctionCall]]:
            return self.tokenizer.decode(responses_ids).upper(), []

    parser = ToolParser.get_tool_parser("shouting", _ForeignTokenizer("hi"))
    assert asyncio.run(parser.extract_tool_calls([1])) == ("HI", [])


def test_where_traces_go_is_said_by_the_configuration(caplog: pytest.LogCaptureFixture) -> None:
    """Code that asks for something else is told."""
    RolloutTraceConfig.init("p", "e", "weave", token2text=True)
    RolloutTraceConfig.reset()
    assert "RolloutTraceConfig.init(backend='weave', project 'p', experiment 'e') does nothing" in caplog.text
