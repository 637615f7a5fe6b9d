"""Chat templates as models ship them, shortened but faithful in whatever decides what a history looks like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest

from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer

_FOLDER = Path(__file__).parent / "templates"
_SHIPPED = Path(__file__).parents[2] / "ludus" / "text" / "templates"
_SPECIAL = {
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "r1": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
}

LoadTemplate = Callable[..., ChatTemplate]


@cache
def load(name: str, now: Callable[[], datetime] = lambda: datetime(2026, 1, 31)) -> ChatTemplate:
    folder = _SHIPPED if name == "chatml-tools" else _FOLDER
    source = (folder / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, _SPECIAL.get(name, {"eos_token": "<|im_end|>"}), now=now)


@pytest.fixture(scope="session")
def load_template() -> LoadTemplate:
    """Loads a template by name; the date is fixed unless `now` says otherwise."""
    return load


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)
