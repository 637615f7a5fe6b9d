"""parse(render(message)) is the message, over a template of every family."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.text.parse import opens_reasoning, parser_for
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall, ToolSpec

_SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
_SPEC = importlib.util.find_spec("trl")
assert _SPEC is not None and _SPEC.submodule_search_locations is not None, "the tests need the templates of `trl`"
_TRL = Path(_SPEC.submodule_search_locations[0]) / "chat_templates"
_OWN = Path(__file__).parents[1] / "templates"
_SHIPPED = Path(__file__).parents[3] / "ludus" / "text" / "templates"

TOOLS = (
    ToolSpec(
        "get_weather",
        "Tells the weather.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "scale": {"type": "number"},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object"},
                "note": {"type": ["string", "null"]},
            },
        },
    ),
    ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}}),
)

# Template: its parser, the text that ends a turn, the most calls of one message, and what the message may have.
FAMILIES: dict[str, tuple[str, str, int, str]] = {
    "chatml-tools": ("hermes", "<|im_end|>", 3, "content"),
    "trl/qwen2_5": ("hermes", "<|im_end|>", 3, "content"),
    "trl/qwen3": ("hermes", "<|im_end|>", 3, "content thinking"),
    "trl/qwen3_5_think": ("qwen3_coder", "<|im_end|>", 3, "content thinking"),
    "trl/qwen3_8": ("qwen3_coder", "<|im_end|>", 3, "content thinking"),
    "trl/nemotron_3_nano": ("qwen3_coder", "<|im_end|>", 3, "content thinking"),
    "trl/glm4moe": ("glm", "<|user|>", 3, "content thinking"),
    "trl/llama3_1": ("llama3", "<|eot_id|>", 1, ""),
    "trl/llama3_2": ("llama3", "<|eot_id|>", 1, ""),
    "trl/lfm2_v2": ("pythonic", "<|im_end|>", 3, "content"),
    "trl/gptoss": ("gpt_oss", "<|call|>", 1, "thinking"),
    "mistral": ("mistral", "<eos>", 3, ""),
    "mistral-args": ("mistral", "<eos>", 3, "content ids"),
    "deepseek3": ("deepseek", "<eos>", 3, "content"),
    "deepseek31": ("deepseek", "<eos>", 3, "content"),
    "kimi": ("kimi", "<|im_end|>", 3, "content thinking ids"),
    "minimax1": ("minimax", "<end_of_sentence>", 3, "content"),
    "minimax2": ("minimax", "[e~[", 3, "content thinking"),
}


@cache
def template(name: str) -> ChatTemplate:
    if name.startswith("trl/"):
        path = _TRL / f"{name.removeprefix('trl/')}.jinja"
    else:
        path = (_SHIPPED if name == "chatml-tools" else _OWN) / f"{name}.jinja"
    return ChatTemplate(path.read_text(encoding="utf-8"), _SPECIAL)


WORDS = st.text(st.sampled_from("ab {}[]\"'\\,:=é\n1<>/😀"), max_size=12)
TEXTS = WORDS.filter(lambda text: text == text.strip("\n"))
VALUES = {
    "city": WORDS,
    "days": st.integers(-(10**6), 10**6),
    "scale": st.floats(-1e6, 1e6).filter(lambda number: number != int(number)),
    "exact": st.booleans(),
    "tags": st.lists(WORDS, max_size=3),
    "options": st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.booleans(), WORDS), max_size=2),
    "note": st.one_of(st.none(), WORDS.filter(lambda text: text.strip() not in ("None", "null"))),
}


@st.composite
def messages(draw: st.DrawFn, name: str) -> Message:
    parser, _, most_calls, parts = FAMILIES[name]
    calls = []
    for idx in range(draw(st.integers(1, most_calls))):
        tool = draw(st.sampled_from(["get_weather", "now"]))
        keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True)) if tool == "get_weather" else []
        arguments = {key: draw(VALUES[key]) for key in keys}
        call_id = f"functions.{tool}:{idx}" if parser == "kimi" else f"abcdefg{idx:02}"
        calls.append(ToolCall(call_id, tool, json.dumps(arguments, ensure_ascii=False)))
    content = draw(st.sampled_from([None, "Let me see."])) if "content" in parts else None
    reasoning = draw(st.sampled_from(["Hm.\n\nSo."])) if "thinking" in parts else None
    return Message("assistant", content, reasoning, tuple(calls))


@settings(deadline=None)
@given(st.sampled_from(sorted(FAMILIES)).flatmap(lambda name: st.tuples(st.just(name), messages(name))))
def test_round_trip(named: tuple[str, Message]) -> None:
    """What the template writes of a message with calls is read as that message."""
    name, message = named
    expected, end, _, parts = FAMILIES[name]
    shown = template(name)
    parser = parser_for(shown.source)
    assert parser.name == expected
    asked = [Message("user", "Hi")]
    prompt = shown.render(asked, TOOLS)
    whole = shown.render([*asked, message], TOOLS, generation_prompt=False)
    assert whole.startswith(prompt)
    text = whole[len(prompt) :].partition(end)[0]
    read = parser.parse(text, in_reasoning=opens_reasoning(prompt), tools=TOOLS).message
    assert (read.content or "").strip() == (message.content or "")
    assert read.reasoning == message.reasoning
    assert [call.name for call in read.tool_calls] == [call.name for call in message.tool_calls]
    assert [json.loads(call.arguments) for call in read.tool_calls] == [
        json.loads(call.arguments) for call in message.tool_calls
    ]
    if "ids" in parts:
        assert [call.id for call in read.tool_calls] == [call.id for call in message.tool_calls]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_ids_are_such_as_the_template_takes(name: str) -> None:
    """A call that was read without an id gets one with which the template shows it."""
    shown = template(name)
    parser = parser_for(shown.source)
    own = {"kimi": "functions.now:0", "mistral": "abcdefghi"}.get(parser.name, "call_0")
    message = Message("assistant", tool_calls=(ToolCall(own, "now", "{}"),))
    text = shown.render([Message("user", "Hi"), message], TOOLS, generation_prompt=False)
    assert "now" in text
    if parser.name == "mistral":
        (call,) = parser.parse('[TOOL_CALLS] [{"name": "now", "arguments": {}}]', call_seed="s").tool_calls
        assert len(call.id) == 9 and call.id.isalnum()
