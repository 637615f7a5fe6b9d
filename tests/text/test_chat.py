"""Tokenizer, template and parser of a model come together from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import UserError
from ludus.text import chat
from ludus.text.chat import ChatText, shipped_templates
from ludus.text.incremental import RenderedTurn, continuation
from ludus.text.parse import parser_for
from ludus.types import ChatRequest, Message, ToolCall, ToolSpec
from tests.text.conftest import LoadTemplate
from tests.text.dialogue import REASONS, STOPS


def test_the_models_own(tokenizer_folder: Path) -> None:
    """Without options, the model's own template decides everything."""
    text = ChatText.load(tokenizer_folder)
    assert text.parser.name == "plain"
    assert text.template.source == text.tokenizer.chat_template


def test_shipped_template_by_name(tokenizer_folder: Path) -> None:
    """A shipped template is taken by its name, and brings its parser; requests without tools are read plainly."""
    text = ChatText.load(tokenizer_folder, chat_template="chatml-tools")
    assert list(shipped_templates()) == ["chatml-tools"]
    assert text.template.renders_tools
    assert text.parser_of(ChatRequest((), tools=(ToolSpec("add"),))).name == "hermes"
    assert text.parser_of(ChatRequest(())).name == "plain"


def test_calls_that_nobody_reads_are_told_once(
    tokenizer_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A template that shows tools and no known format of calls: they would stay text, and the agent would wait."""
    path = tmp_path / "own.jinja"
    path.write_text("{{ tools | tojson }}{{ messages[0].content }}")
    text = ChatText.load(tokenizer_folder, chat_template=str(path))
    chat._tell_unread.cache_clear()
    for tools in ((), (ToolSpec("add"),), (ToolSpec("add"),)):
        text.parser_of(ChatRequest((), tools=tools))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "tools are offered, and nothing in the model's chat template says how it writes calls, so they stay text; "
        "model.tool_parser names the format"
    ]


def test_template_file(tokenizer_folder: Path, tmp_path: Path) -> None:
    """A template is taken from a file, and the parser may be set by hand."""
    path = tmp_path / "mine.jinja"
    path.write_text("{{ bos_token }}{{ messages[0].content }}")
    text = ChatText.load(tokenizer_folder, chat_template=str(path), tool_parser="hermes")
    assert text.template.render([Message("user", "Hi")]) == "<|im_start|>Hi"
    assert text.parser.name == "hermes"


def test_template_text_and_arguments(tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A template may be given as its text; arguments that it does not read are named."""
    source = "{{ messages[0].content }}{{ tone }}"
    text = ChatText.load(tokenizer_folder, chat_template=source, chat_template_kwargs={"tone": "!", "pace": 1})
    assert (text.template.source, text.template.render([Message("user", "Hi")])) == (source, "Hi!")
    assert caplog.messages == ["the chat template does not read pace of model.chat_template_kwargs"]


def test_unknown_names(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Unknown templates and parsers are refused with the known names; so is a model without any template."""
    with pytest.raises(UserError, match="chatml-tools"):
        ChatText.load(tokenizer_folder, chat_template="nope")
    with pytest.raises(UserError, match="hermes"):
        ChatText.load(tokenizer_folder, tool_parser="nope")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((tokenizer_folder / name).read_text())
    with pytest.raises(UserError, match="chat_template"):
        ChatText.load(tmp_path)


@dataclass
class OneStop:
    """A tokenizer of which nothing is asked but what ends a turn."""

    stop: str
    stop_ids = frozenset({0})

    def decode(self, ids: tuple[int, ...]) -> str:
        return self.stop


CALL = ToolCall("call00000", "add", '{"a": 1}')
SAID = {
    "a user": (Message("assistant", "It is 5."), Message("user", "And now?")),
    "a tool": (Message("assistant", tool_calls=(CALL,)), Message("tool", "2", tool_call_id=CALL.id, name="add")),
}


TEMPLATES = ("chatml", "chatml-tools", "gemma", "kimi", "llama3", "mistral", "mistral-args", "qwen2", "qwen3")
CASES = [(name, who) for name in TEMPLATES for who in SAID if (name, who) != ("gemma", "a tool")]  # it has no such role


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(("name", "who"), CASES)
def test_what_follows_an_answer_is_what_the_recorder_goes_on_with(
    load_template: LoadTemplate, name: str, who: str, is_cut: bool
) -> None:
    """In every template, behind answers and calls, ended and cut; but where the recorder would begin anew."""
    template, stop, first = load_template(name), STOPS.get(name, "<|im_end|>"), Message("user", "Add up.")
    reply, new = SAID[who]
    given: dict[str, Any] = {"tools": (ToolSpec("add", "Adds.", {"type": "object"}),) if template.renders_tools else ()}
    prompt = template.render([first], **given)
    body = template.render([first, reply], generation_prompt=False, **given).removeprefix(prompt)
    sampled = body[: body.index(stop)] + stop * (not is_cut)
    turn = RenderedTurn([first], given["tools"], {}, prompt, reply, sampled)
    expected = continuation(template, turn, [first, reply, new], given["tools"], {}, {stop})
    text = ChatText(OneStop(stop), template, parser_for(template.source))  # type: ignore[arg-type]
    found = text.follow_up([new], () if is_cut else (0,), calls=reply.tool_calls, **given)
    assert expected in (found, *REASONS) and (expected == found or (name, who) == ("mistral", "a user"))
