"""Chat text for the checks, without a model: a template that drops earlier thinking, a tokenizer of few words.

Knows: `ludus.text`.  Knows not: engines, sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ludus.checks.tokenizer import chat_of
from ludus.text.chat import ChatText

THINKING_TEMPLATE = Path(str(resources.files("ludus.checks.verify") / "thinking.jinja"))
"""A template that treats thinking as Qwen3's does. For the checks only, as models have their own templates."""
_MARKUP = (
    'system\nuser\nassistant\ntool\n<tools>\n</tools> <think>\n\n</think>\n\n{"name": "ask", "arguments": {"task": "'
    '"}}\n<tool_call>\n</tool_call> "description": "", "parameters": {}'
)
_VOCAB_SIZE = 384
"""The 256 bytes, the two special tokens, and the merges for the markup and the words."""


def chat_of_words(words: Sequence[str]) -> ChatText:
    """Chat text without a model's files: short tokens for `words` and those of the template, bytes for all else."""
    return chat_of([_MARKUP, *words, " ".join(words)], THINKING_TEMPLATE, vocab_size=_VOCAB_SIZE)
