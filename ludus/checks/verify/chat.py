"""Chat text that the checks need and no model brings: a template that drops earlier thinking, a tokenizer of few words.

Knows: `ludus.text`.  Knows not: engines, sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ludus.checks.tokenizer import SPECIAL_TOKENS, train_core
from ludus.text.chat import ChatText
from ludus.text.parse import parser_for
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer

THINKING_TEMPLATE = Path(str(resources.files("ludus.checks.verify") / "thinking.jinja"))
"""Qwen3's way with thinking. It lies beside the checks and is not shipped for models: each has its own."""
_MARKUP = (
    'system\nuser\nassistant\ntool\n<tools>\n</tools> <think>\n\n</think>\n\n{"name": "ask", "arguments": {"task": "'
    '"}}\n<tool_call>\n</tool_call> "description": "", "parameters": {}'
)
_VOCAB_SIZE = 384
"""The 256 bytes, the two marks, and the merges that the markup and the words give."""


def chat_of_words(words: Sequence[str]) -> ChatText:
    """Chat text without a model's files: `words` and those of the template are short, all else is bytes."""
    core = train_core([_MARKUP, *words, " ".join(words)], vocab_size=_VOCAB_SIZE)
    start, end = SPECIAL_TOKENS
    tokenizer = Tokenizer(
        core,
        special_tokens={"bos_token": start, "eos_token": end},
        stop_ids=frozenset({SPECIAL_TOKENS.index(end)}),  # special tokens get the first ids, in their order
    )
    source = THINKING_TEMPLATE.read_text(encoding="utf-8")
    return ChatText(
        tokenizer=tokenizer,
        template=ChatTemplate(source, tokenizer.special_tokens),
        parser=parser_for(source),
    )
