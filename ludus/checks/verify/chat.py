"""Chat text that the checks need and no model brings: a template that drops earlier thinking, a tokenizer of few words.

Knows: `ludus.text`.  Knows not: engines, sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ludus.checks.tokenizer import chat_of
from ludus.text.chat import ChatText

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
    return chat_of([_MARKUP, *words, " ".join(words)], THINKING_TEMPLATE, vocab_size=_VOCAB_SIZE)
