"""Every format: a reply is taken apart the same way however it arrives, and nothing of it is lost."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.text.parse import PARSERS, parser_for
from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    Parsed,
    ReasoningDelta,
    ToolCallBroken,
    ToolCallDelta,
    ToolParser,
    collect,
)
from ludus.types import ToolSpec

TOOLS = (
    ToolSpec(
        "add",
        parameters={
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "text": {"type": "string"},
                "maybe": {"type": ["string", "null"]},
                "flag": {"type": "boolean"},
                "items": {"type": "array", "items": {"type": "integer"}},
            },
        },
    ),
    ToolSpec("now"),
)
# One whole call of each form, and what a call of that form is cut into.
CALLS: dict[str, list[str]] = {
    "hermes": ['<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'],
    "qwen3_coder": [
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=text>\nx\n y\n</parameter>\n"
        "</function>\n</tool_call>",
        "<function=now></function>",
    ],
    "glm": [
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n"
        "<arg_value>x y</arg_value>\n</tool_call>",
        "<tool_call>now\n</tool_call>",
    ],
    "minimax": [
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n<parameter name="text">x'
        '</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        '<tool_calls>\n{"name": "add", "arguments": {"a": 1}}\n{"name": "now", "arguments": {}}\n</tool_calls>',
    ],
    "llama3": [
        '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
    ],
    "pythonic": [
        "[add(a=1, text='x\\'y', items=[1, (2)]), now()]",
        "<|tool_call_start|>[add(flag=True, maybe=None)]<|tool_call_end|>",
        '<|python_start|>[add(text="\\u00e9", items=[{"k": -1.5e3}])]<|python_end|>',
    ],
    "mistral": [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "now", "arguments": {}}]',
        '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}',
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ],
    "kimi": [
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
    ],
    "gpt_oss": [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        '<|constrain|>json<|message|>{"a": 1}',
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        "<|channel|>final<|message|>Hi<|end|>",
    ],
}
WORDS = ("hello", " ", "\n", "é😀", "null", *"\"\\{}[](),=:1<|;'")
THINKING = ("<think>", "</think>", "\n\n")
FORMATS = sorted(CALLS)


def pieces(name: str) -> st.SearchStrategy[list[str]]:
    """Texts of whole calls, of calls cut anywhere, of tags and of words."""
    whole = st.sampled_from(CALLS[name])
    cut = st.tuples(whole, st.integers(0, 300), st.integers(0, 300)).map(lambda t: t[0][min(t[1:]) : max(t[1:])])
    tags = st.sampled_from(parser_for(None, name).markers or ("<tool_call>",))
    return st.lists(st.one_of(whole, cut, tags, st.sampled_from(WORDS), st.sampled_from(THINKING)), max_size=10)


TEXTS = st.sampled_from(FORMATS).flatmap(lambda name: st.tuples(st.just(name), pieces(name).map("".join)))


def streamed(parser: ToolParser, chunks: list[str], *, in_reasoning: bool = False) -> tuple[list[Delta], Parsed]:
    stream = parser.stream(in_reasoning=in_reasoning, call_seed="seed", tools=TOOLS)
    deltas = [delta for chunk in chunks for delta in stream.feed(chunk)] + stream.finish()
    return deltas, collect(deltas, stream.undecoded)


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(named=TEXTS, cuts=st.lists(st.integers(0, 400)), thinks=st.booleans(), opened=st.booleans())
def test_streamed_equals_whole(named: tuple[str, str], cuts: list[int], thinks: bool, opened: bool) -> None:
    """All deltas together are the parsed text, for every split into chunks and down to single characters."""
    name, text = named
    parser = parser_for("<think>" if thinks else None, name)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(edges)]
    whole = parser.parse(text, in_reasoning=opened, call_seed="seed", tools=TOOLS)
    assert streamed(parser, chunks, in_reasoning=opened)[1] == whole
    assert streamed(parser, list(text), in_reasoning=opened)[1] == whole


@given(TEXTS)
def test_calls_are_calls(named: tuple[str, str]) -> None:
    """Arguments are JSON objects and names are names; what breaks had begun before; undecoded text is content."""
    name, text = named
    deltas, parsed = streamed(parser_for(None, name), list(text))
    for call in parsed.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.name and call.name.isprintable() and call.id
    for raw in parsed.undecoded:
        assert raw and raw in text and raw in (parsed.content or "")
    begun: set[int] = set()
    for delta in deltas:
        if isinstance(delta, ToolCallDelta) and delta.name is not None:
            assert delta.index == len(begun)
            begun.add(delta.index)
        elif isinstance(delta, (ToolCallDelta, ToolCallBroken)):
            assert delta.index == len(begun) - 1


@given(TEXTS)
def test_nothing_is_lost(named: tuple[str, str]) -> None:
    """Every visible character of the text is in the content, in the thinking, in a call or in a tag, in its order."""
    name, text = named
    parsed = streamed(parser_for(None, name), [text])[1]
    written = [parsed.content or "", parsed.reasoning or ""]
    for call in parsed.tool_calls:
        written += [call.name, call.arguments, call.id]
    for word in ("hello", "😀"):
        # Copies in what was written: a name may stand in an id as well.
        assert sum(part.count(word) for part in written) >= text.count(word)
    if not parsed.tool_calls and name != "gpt_oss":
        assert parsed.content == text


@given(st.sampled_from(FORMATS), st.lists(st.sampled_from((*WORDS, *THINKING))).map("".join))
def test_text_without_calls_is_content(name: str, text: str) -> None:
    """Where no tag is, all of the text is content as it is."""
    assert parser_for(None, name).parse(text, tools=TOOLS) == Parsed(text, None)


@given(st.sampled_from(PARSERS), TEXTS)
def test_plain_reads_no_calls(name: str, named: tuple[str, str]) -> None:
    """The plain parser of any format finds no calls, and loses nothing."""
    parsed = parser_for(None, name).plain.parse(named[1])
    assert not parsed.tool_calls and not parsed.undecoded
    if name != "gpt_oss":
        assert parsed.content == named[1]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in FORMATS for text in CALLS[name] if "add" in text])
def test_arguments_leave_as_they_come(name: str, text: str) -> None:
    """Sampled one character at a time, a call's name leaves before its arguments, and those bit by bit."""
    deltas = [delta for delta in streamed(parser_for(None, name), list(text))[0] if isinstance(delta, ToolCallDelta)]
    assert deltas[0].name == "add" and deltas[0].arguments == ""
    of_first = [delta.arguments for delta in deltas[1:] if delta.index == 0]
    assert len(of_first) >= 3
    assert isinstance(json.loads("".join(of_first)), dict)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "gpt_oss"])
def test_call_in_the_thinking(name: str) -> None:
    """A call inside the thinking is a thought, and the one behind it is a call."""
    call = CALLS[name][0]
    parsed = parser_for("<think>", name).parse(f"<think>\n{call}\n</think>\n\n{call}", tools=TOOLS)
    assert parsed.reasoning == call
    assert parsed.tool_calls[0].name == "add"
    assert parsed.content is None


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in FORMATS for text in CALLS[name]])
def test_cut_anywhere(name: str, text: str) -> None:
    """A reply that ends inside a call holds its text, and every call that was complete before."""
    for length in range(len(text)):
        parsed = parser_for(None, name).parse(text[:length], tools=TOOLS)
        for call in parsed.tool_calls:
            json.loads(call.arguments)
        if not parsed.tool_calls and name != "gpt_oss":
            assert parsed.content == text[:length]


def test_broken_after_its_head() -> None:
    """A call that breaks behind its head is taken back by name, and its text follows as content."""
    stream = parser_for(None, "hermes").stream(call_seed="s")
    first, second = stream.feed('So <tool_call>{"name": "f", "arguments": {"a": ')[1:]
    assert isinstance(first, ToolCallDelta) and first.name == "f"
    assert second == ToolCallDelta(0, None, None, '{"a": ')
    text = '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'
    assert stream.feed("oops}}</tool_call>") == [ToolCallBroken(0), ContentDelta(f" {text}")]
    assert stream.undecoded == (text,)
    assert stream.finish() == []


def test_reasoning_of_channels() -> None:
    """Analysis is thinking, final is content, a preamble is content too, and a second message gets a newline."""
    parser = parser_for("<|channel|>")
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert parser.parse(text) == Parsed("I look.\nYes.", "Hm.\nSo.")
    stream = parser.stream()
    assert stream.feed("<|channel|>analysis<|mess") == []
    assert stream.feed("age|>Hm") == [ReasoningDelta(""), ReasoningDelta("Hm")]
