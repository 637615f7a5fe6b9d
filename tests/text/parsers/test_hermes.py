"""A reply is taken apart the same way however it arrives, and nothing of it is lost."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.text.parse import parser_for
from ludus.text.parsers.base import ContentDelta, Delta, Parsed, ReasoningDelta, ToolCallDelta, ToolParser, collect
from ludus.text.parsers.plain import plain_parser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def hermes(*, splits_reasoning: bool = False) -> ToolParser:
    return parser_for("<think>" if splits_reasoning else None, "hermes")


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool", "</", "<", ">", "\n", " ", "\n\n", "\t"),
        *('{"name": "add", "arguments": {"a": 1}}', '{"name": "f"}', '{"name": 3, "arguments": {}}', "[]", "{", "}"),
        *('{"arguments": {"x": "</tool_call>"}, "name": "g"}', '{"name": "f", "arguments": ', "hello", "é😀", '"'),
        *("\\", CALL, '{"name": "h", "arguments": "{}"}', "null"),
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)


def streamed(parser: ToolParser, chunks: list[str], *, in_reasoning: bool = False) -> tuple[list[Delta], Parsed]:
    stream = parser.stream(in_reasoning=in_reasoning, call_seed="seed")
    deltas = [delta for chunk in chunks for delta in stream.feed(chunk)] + stream.finish()
    return deltas, collect(deltas, stream.undecoded)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200)), thinks=st.booleans(), opened=st.booleans())
def test_streamed_equals_whole(text: str, cuts: list[int], thinks: bool, opened: bool) -> None:
    """All deltas together are the parsed text, for every split into chunks and down to single characters."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(edges)]
    for parser in (hermes(splits_reasoning=thinks), plain_parser(splits_reasoning=thinks)):
        whole = parser.parse(text, in_reasoning=opened, call_seed="seed")
        assert streamed(parser, chunks, in_reasoning=opened)[1] == whole
        assert streamed(parser, list(text), in_reasoning=opened)[1] == whole


@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    """Every visible character is in the content, in the thinking, or in a call; undecoded calls are in the content."""
    parsed = hermes().parse(text)
    rest = "".join(text.split())
    content = "".join((parsed.content or "").split())
    if not parsed.tool_calls:
        assert parsed.content == text
    assert len(rest) - len(content) <= sum(
        len("<tool_call></tool_call>") + len(call.arguments) + len(call.name) + 100 for call in parsed.tool_calls
    )
    for raw in parsed.undecoded:
        assert raw.startswith("<tool_call>")
        assert raw in (parsed.content or "")
        assert raw in text


@given(TEXTS)
def test_calls_hold_sampled_json(text: str) -> None:
    """Arguments are objects, written exactly as in the text; names are names."""
    for call in hermes().parse(text).tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.arguments in text or call.arguments == "{}"
        assert call.name


def test_text_and_calls() -> None:
    """Text around calls is content, without the blanks that only separate it from a call."""
    parsed = hermes().parse(f"Let me add.\n{CALL}\n{CALL}\nDone.")
    assert parsed.content == "Let me add.\nDone."
    assert [call.name for call in parsed.tool_calls] == ["add", "add"]
    assert parsed.tool_calls[0].id != parsed.tool_calls[1].id
    assert hermes().parse(CALL + "\n").content is None
    assert hermes().parse("").content == ""


def test_ids_come_from_the_seed() -> None:
    """The same seed gives the same ids, in the form call_ and 24 hex digits."""
    first, again, other = (hermes().parse(CALL, call_seed=seed).tool_calls[0].id for seed in ("x", "x", "y"))
    assert first == again != other
    assert first.startswith("call_")
    assert len(bytes.fromhex(first.removeprefix("call_"))) == 12


def test_arguments_as_sampled() -> None:
    """Blanks, order and escapes of the arguments stay as the model wrote them."""
    arguments = '{ "b" :1,"a": "</tool_call> \\u00e9\\n" , "c":[{}]}'
    text = f'<tool_call>{{"arguments":{arguments}, "id": 7, "name": "f"}}</tool_call>'
    parsed = hermes().parse(text)
    assert parsed.tool_calls[0].arguments == arguments
    assert parsed.content is None
    assert parsed.undecoded == ()


def test_call_without_arguments() -> None:
    """A call without arguments has none: an empty object."""
    assert hermes().parse('<tool_call>{"name": "now"}</tool_call>').tool_calls[0].arguments == "{}"


def test_missing_closing_tag() -> None:
    """A complete call counts though its closing tag is missing, at the end or before another call."""
    body = '<tool_call>{"name": "f", "arguments": {}}'
    assert len(hermes().parse(body).tool_calls) == 1
    assert len(hermes().parse(body + "\n" + body).tool_calls) == 2


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>add(1, 2)</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": f, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>',
        "<tool_call></tool_call>",
        '<tool_call>["f"]</tool_call>',
    ],
)
def test_broken_calls_stay_content(broken: str) -> None:
    """A call that cannot be decoded is content and listed; the calls beside it count."""
    parsed = hermes().parse(f"A {broken}\n{CALL} B")
    assert parsed.content == f"A {broken} B"
    assert parsed.undecoded == (broken,)
    assert len(parsed.tool_calls) == 1


def test_cut_inside_a_call() -> None:
    """A call cut by length is content."""
    text = 'Hm\n<tool_call>\n{"name": "add", "argu'
    parsed = hermes().parse(text)
    assert parsed == Parsed(content=text, reasoning=None, undecoded=(text.removeprefix("Hm\n"),))


def test_call_in_the_thinking() -> None:
    """A call inside the thinking is thinking, whether the reply or the prompt opened it."""
    parser = hermes(splits_reasoning=True)
    expected = Parsed(content="Hi", reasoning=f"so\n{CALL}")
    assert parser.parse(f"<think>\nso\n{CALL}\n</think>\n\nHi") == expected
    assert parser.parse(f"so\n{CALL}\n</think>\n\nHi", in_reasoning=True) == expected
    assert len(parser.parse(f"<think></think>{CALL}").tool_calls) == 1


def test_shapes_of_thinking() -> None:
    """Thinking may be absent, empty, cut, or not at the start, where it is content; newlines at its edges are tags'."""
    parser = plain_parser(splits_reasoning=True)
    assert parser.parse("Hi") == Parsed("Hi", None)
    assert parser.parse("<think>\n\n</think>\n\nHi") == Parsed("Hi", "")
    assert parser.parse("<think>\nhm\n\nso") == Parsed("", "hm\n\nso")
    assert parser.parse("hm", in_reasoning=True) == Parsed("", "hm")
    assert parser.parse("\n<think>\n") == Parsed("", "")
    assert parser.parse("Hi <think>x</think>") == Parsed("Hi <think>x</think>", None)
    assert plain_parser().parse("<think>x</think>") == Parsed("<think>x</think>", None)


def test_text_leaves_at_once() -> None:
    """Only what may still be a tag, or a blank before one, is held back."""
    stream = hermes().stream()
    assert stream.feed("a < b") == [ContentDelta("a < b")]
    assert stream.feed(" <tool") == []
    assert stream.feed("box> \n") == [ContentDelta(" <toolbox>")]
    assert stream.feed("x") == [ContentDelta(" \nx")]
    assert stream.finish() == []


def test_broken_call_leaves_early() -> None:
    """What cannot become a call any more is released before its end is seen."""
    stream = hermes().stream()
    assert stream.feed("<tool_call>") == []
    assert stream.feed("\nno JSON") == [ContentDelta("<tool_call>\nno JSON")]
    assert stream.undecoded == ()
    stream.feed("</tool_call>")
    assert stream.undecoded == ("<tool_call>\nno JSON</tool_call>",)


def test_call_leaves_when_its_head_is_certain() -> None:
    """A call begins when its name is known and its arguments have begun; the rest of them leaves as it comes."""
    stream = hermes().stream(call_seed="s")
    assert stream.feed('<tool_call>{"name": "f", "arguments": ') == []
    first, second = stream.feed("{")
    assert isinstance(first, ToolCallDelta)
    assert (first.index, first.name, first.arguments) == (0, "f", "")
    assert second == ToolCallDelta(0, None, None, "{")
    assert stream.feed('"a": 1}') == [ToolCallDelta(0, None, None, '"a": 1}')]


def test_arguments_before_the_name() -> None:
    """Arguments that come before the name wait for it; a name that is given twice is none."""
    stream = hermes().stream(call_seed="s")
    assert stream.feed('<tool_call>{"arguments": {"a": 1}, "name": "f"') == []
    assert [type(delta) for delta in stream.feed("}")] == [ToolCallDelta, ToolCallDelta]
    twice = '<tool_call>{"name": "f", "arguments": {}, "name": "g"}</tool_call>'
    assert hermes().parse(twice) == Parsed(twice, None, undecoded=(twice,))


def test_thinking_leaves_as_it_comes() -> None:
    """Thinking is streamed, less what may be the closing tag or newlines before it."""
    stream = hermes(splits_reasoning=True).stream()
    assert stream.feed("<thi") == []
    assert stream.feed("nk>\n") == [ReasoningDelta("")]
    assert stream.feed("so\n") == [ReasoningDelta("so")]
    assert stream.feed("it is</") == [ReasoningDelta("\nit is")]
    assert stream.feed("think>\n\n") == []
    assert stream.feed("\nHi") == [ContentDelta("Hi")]
