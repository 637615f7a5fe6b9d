"""What a grammar allows is read as what was forced, in every format: texts are drawn from it at random."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import pytest

from ludus.errors import AgentError
from ludus.text.grammar import grammar_of
from ludus.text.parse import PARSERS, parser_for
from ludus.text.parsers.base import Parsed, ToolParser
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, ResponseFormat, ToolSpec

ADD = ToolSpec(
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "text": {"type": "string"},
            "kind": {"enum": ["x", "y/z"]},
            "note": {"type": ["string", "null"], "maxLength": 5},
            "flags": {"type": "array", "items": {"$ref": "#/$defs/flag"}, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[a-z]{2}/?[0-9]$"},
        },
        "required": ["a", "code"],
        "additionalProperties": False,
        "$defs": {"flag": {"type": "boolean"}},
    },
    strict=True,
)
NOW = ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (ADD, NOW)
ANSWER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ANYTHING: Mapping[str, Any] = {}
CALLING = [name for name in PARSERS if name != "plain"]
TYPES: Mapping[str, Any] = {"integer": int, "string": str, "array": list, "boolean": bool, "null": type(None)}
# What ends whatever may be open: a walk that has gone on for long takes these where it can.
CLOSERS = ('"', "]", "}", "</think>", "</arg_value>", "\n</parameter>", "</parameter>", "<|end|>")
MOST_RANDOM_TOKENS = 40


def draw(tokenizer: Tokenizer, grammar: str, seed: int) -> str:
    """A text of the grammar, token by token, as a model of no preference would sample it."""
    chance = random.Random(seed)
    matcher = llguidance.LLMatcher(tokenizer.guidance, grammar)
    ids: list[int] = []
    for step in range(2000):
        if matcher.is_stopped() or (matcher.is_accepting() and chance.random() < 0.5):
            break
        closers = [tokenizer.encode(text, after=ids[-1] if ids else None) for text in CLOSERS]
        closing = [closer for closer in closers if matcher.validate_tokens(list(closer)) == len(closer)]
        if step > MOST_RANDOM_TOKENS and closing:
            taken = chance.choice(closing)
        else:
            bias = matcher.compute_logit_bias()
            allowed = [idx for idx, value in enumerate(bias) if value and idx not in tokenizer.stop_ids]
            taken = (chance.choice(allowed),)
        assert matcher.consume_tokens(list(taken)), matcher.get_error()
        ids += taken
    assert matcher.is_accepting(), tokenizer.decode(ids)
    return tokenizer.decode(ids)


def read(parser: ToolParser, text: str, *, in_reasoning: bool = False) -> Parsed:
    return parser.parse(text, in_reasoning=in_reasoning, tools=TOOLS)


def check(value: object, schema: Mapping[str, Any]) -> None:
    """Whether the schemas above allow `value`."""
    schema = ADD.parameters["$defs"]["flag"] if "$ref" in schema else schema
    named = schema.get("type", [])
    kinds = [named] if isinstance(named, str) else named
    if "object" in kinds:
        assert isinstance(value, dict) and set(schema.get("required", ())) <= set(value)
        assert set(value) <= set(schema["properties"])
        for key, item in value.items():
            check(item, schema["properties"][key])
        return
    assert not kinds or any(type(value) is TYPES[kind] for kind in kinds), (value, schema)
    assert value in schema.get("enum", [value])
    if isinstance(value, str):
        assert len(value) <= schema.get("maxLength", len(value)) and re.search(schema.get("pattern", ""), value)
    if isinstance(value, list):
        assert len(value) <= schema["maxItems"]
        for item in value:
            check(item, schema["items"])


def check_calls(parsed: Parsed, tools: Sequence[ToolSpec] = TOOLS) -> None:
    """Calls of these tools have arguments that their schemas allow; there are no calls but of TOOLS."""
    schemas = {tool.name: tool.parameters for tool in tools}
    for call in parsed.tool_calls:
        assert call.name in ("add", "now")
        check(json.loads(call.arguments), schemas.get(call.name, ANYTHING))


def grammar(parser: ToolParser, tokenizer: Tokenizer, *, in_reasoning: bool = False, **fields: Any) -> str:
    request = ChatRequest((), **{"tools": TOOLS, **fields})
    written = grammar_of(request, parser, tokenizer.special_ids, in_reasoning=in_reasoning)
    assert written is not None
    return written


@pytest.mark.parametrize("name", CALLING)
def test_forced_calls(name: str, tokenizer: Tokenizer) -> None:
    """A reply that must call is calls and nothing else, with arguments that the schemas allow."""
    parser = parser_for(None, name)
    lark = grammar(parser, tokenizer, tool_choice="required")
    for seed in range(4):
        parsed = read(parser, text := draw(tokenizer, lark, seed))
        assert parsed.tool_calls and parsed.content is None and not parsed.undecoded, text
        check_calls(parsed)


@pytest.mark.parametrize("name", CALLING)
def test_named_call_behind_thinking(name: str, tokenizer: Tokenizer) -> None:
    """A named tool is called once, behind whatever the model thinks first."""
    parser = parser_for("<think>", name)
    for in_reasoning in (False, True):
        lark = grammar(parser, tokenizer, in_reasoning=in_reasoning, tool_choice="required", forced_tool="add")
        for seed in range(2):
            text = draw(tokenizer, lark, seed)
            parsed = read(parser, text, in_reasoning=in_reasoning)
            assert [call.name for call in parsed.tool_calls] == ["add"] and parsed.content is None, text
            check_calls(parsed)


@pytest.mark.parametrize("name", CALLING)
def test_strict_tools_in_free_text(name: str, tokenizer: Tokenizer) -> None:
    """With a strict tool, text is free and what begins as a call ends as one."""
    parser = parser_for(None, name)
    lark = grammar(parser, tokenizer, parallel_tool_calls=False)
    matcher = llguidance.LLMatcher(tokenizer.guidance, lark)
    said = "<|channel|>final<|message|>Hi, <b>{1}</b>" if name == "gpt_oss" else "Hi, <b>{1}</b>"
    ids = list(tokenizer.encode(said))
    assert matcher.consume_tokens(ids) and matcher.is_accepting()
    for seed in range(2):
        parsed = read(parser, draw(tokenizer, lark, seed))
        assert not parsed.undecoded and len(parsed.tool_calls) <= 1
        check_calls(parsed, [ADD])
    calling = forced(parser, tokenizer)
    assert len(read(parser, calling).tool_calls) == 1
    matcher.reset()
    assert matcher.consume_tokens(list(tokenizer.encode(calling))), calling
    assert matcher.is_accepting()


def forced(parser: ToolParser, tokenizer: Tokenizer) -> str:
    """One call as the format writes it."""
    lark = grammar(parser, tokenizer, tool_choice="required", forced_tool="now")
    return draw(tokenizer, lark, 0)


@pytest.mark.parametrize("name", PARSERS)
def test_json_answers(name: str, tokenizer: Tokenizer) -> None:
    """A response format makes the content JSON of its schema; with tools, that or a call."""
    parser = parser_for("<think>", name)
    lark = grammar(parser.plain, tokenizer, tools=(), response_format=ResponseFormat(ANSWER))
    for seed in range(2):
        check(json.loads(read(parser.plain, draw(tokenizer, lark, seed)).content or ""), ANSWER)
    if name == "plain":
        return
    lark = grammar(parser, tokenizer, response_format=ResponseFormat(ANSWER))
    for seed in range(4):
        parsed = read(parser, draw(tokenizer, lark, seed))
        check_calls(parsed, [ADD])
        if not parsed.tool_calls:
            check(json.loads(parsed.content or ""), ANSWER)


def test_no_grammar_without_need(tokenizer: Tokenizer) -> None:
    """Free tools and free answers need none, nor does one call at most where a text ends every call."""
    parser = parser_for(None, "hermes")
    for request in (
        ChatRequest(()),
        ChatRequest((), tools=(NOW,)),
        ChatRequest((), tools=TOOLS, tool_choice="none"),
        ChatRequest((), tools=(NOW,), parallel_tool_calls=False),
    ):
        assert grammar_of(request, parser, tokenizer.special_ids, in_reasoning=False) is None
    single = ChatRequest((), tools=(NOW,), parallel_tool_calls=False)
    assert grammar_of(single, parser_for(None, "llama3"), {}, in_reasoning=False) is not None


def test_special_tokens(tokenizer: Tokenizer) -> None:
    """A tag that is a special token is asked for by its id, since no other text spells it."""
    parser = parser_for(None, "hermes")
    request = ChatRequest((), tools=TOOLS, tool_choice="required")
    written = grammar_of(request, parser, {"<tool_call>": 7, "</tool_call>": 8}, in_reasoning=False)
    assert written is not None and "<[7]>" in written and "<[8]>" in written and "tool_call>" not in written


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("hermes", {"tool_choice": "required", "forced_tool": "gone"}, "'gone'.*'add', 'now'"),
        ("hermes", {"tool_choice": "required", "tools": ()}, "no 'tools'"),
        ("plain", {"tool_choice": "required"}, "model.tool_parser"),
    ],
)
def test_refused(name: str, fields: Mapping[str, Any], said: str) -> None:
    """A call that cannot be forced is refused, with what to do."""
    request = ChatRequest((), **{"tools": TOOLS, **fields})
    with pytest.raises(AgentError, match=said):
        grammar_of(request, parser_for(None, name), {}, in_reasoning=False)


def test_schemas_that_bind_several_arguments() -> None:
    """Where arguments are written one by one, a schema that binds several at once is refused by name."""
    tool = ToolSpec("f", parameters={"type": "object", "anyOf": [{"required": ["a"]}]})
    request = ChatRequest((), tools=(tool,), tool_choice="required")
    with pytest.raises(AgentError, match="'anyOf'") as caught:
        grammar_of(request, parser_for(None, "glm"), {}, in_reasoning=False)
    assert caught.value.code == "invalid_schema"
