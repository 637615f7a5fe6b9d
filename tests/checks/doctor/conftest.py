"""The chat templates that the `trl` package ships, each as a model whose tokenizer knows its special tokens."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers

from ludus.checks.doctor.examine import ASSUMED_TOKENS, special_texts_of, subject_of, subject_of_source
from ludus.checks.doctor.replay import Subject
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer


def trl_folder() -> Path:
    """Found without importing trl, which would bring half of the training world along."""
    found = importlib.util.find_spec("trl")
    assert found is not None and found.submodule_search_locations, "trl is a dependency of the tests"
    return Path(found.submodule_search_locations[0]) / "chat_templates"


def trl_templates() -> list[str]:
    return sorted(path.stem for path in trl_folder().glob("*.jinja"))


@pytest.fixture(scope="session")
def trl_source() -> Callable[[str], str]:
    folder = trl_folder()
    return lambda name: (folder / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def core(smollm2: Path, trl_source: Callable[[str], str]) -> tokenizers.Tokenizer:
    """SmolLM2's tokenizer, extended by every special token that a template of trl's spells."""
    core = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    spelled = {token for name in trl_templates() for token in special_texts_of(trl_source(name))}
    core.add_special_tokens(sorted(spelled))
    return core


@pytest.fixture(scope="session")
def chat_text(core: tokenizers.Tokenizer, trl_source: Callable[[str], str]) -> Callable[[str], ChatText]:
    """The chat text of a model with that template, that ends its replies as the template closes them."""

    @cache
    def make(name: str) -> ChatText:
        source = trl_source(name)
        bare = subject_of_source(source)
        stop_ids = frozenset(core.token_to_id(stop) for stop in bare.reply_writer.stops)
        assert None not in stop_ids, f"the tokenizer lacks one of {bare.reply_writer.stops}"
        special_tokens = {**ASSUMED_TOKENS, "eos_token": bare.reply_writer.stops[0]}
        return ChatText(Tokenizer(core, special_tokens=special_tokens, stop_ids=stop_ids), bare.template, bare.parser)

    return make


@pytest.fixture(scope="session")
def subject(chat_text: Callable[[str], ChatText]) -> Callable[[str], Subject]:
    return cache(lambda name: subject_of(chat_text(name)))
