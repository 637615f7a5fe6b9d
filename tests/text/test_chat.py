"""Tokenizer, template and parser of a model come together from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.text.chat import ChatText, shipped_templates
from ludus.types import ChatRequest, Message, ToolSpec


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


def test_template_file(tokenizer_folder: Path, tmp_path: Path) -> None:
    """A template is taken from a file, and the parser may be set by hand."""
    path = tmp_path / "mine.jinja"
    path.write_text("{{ bos_token }}{{ messages[0].content }}")
    text = ChatText.load(tokenizer_folder, chat_template=str(path), tool_parser="hermes")
    assert text.template.render([Message("user", "Hi")]) == "<|im_start|>Hi"
    assert text.parser.name == "hermes"


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
