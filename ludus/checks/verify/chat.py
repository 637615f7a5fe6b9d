"""Chat text that the checks need and no model brings: a template that drops earlier thinking, a tokenizer of few words.

Knows: `ludus.text`.  Knows not: engines, sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import tokenizers

from ludus.text.chat import ChatText
from ludus.text.parse import parser_for
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer

THINKING_TEMPLATE = Path(str(resources.files("ludus.checks.verify") / "thinking.jinja"))
"""Qwen3's way with thinking. It lies beside the checks and is not shipped for models: each has its own."""
_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
_MARKUP = (
    'system\nuser\nassistant\ntool\n<tools>\n</tools> <think>\n\n</think>\n\n{"name": "ask", "arguments": {"task": "'
    '"}}\n<tool_call>\n</tool_call> "description": "", "parameters": {}'
)
_VOCAB_SIZE = 384
"""The 256 bytes, the two marks, and the merges that the markup and the words give."""


def chat_of_words(words: Sequence[str]) -> ChatText:
    """Chat text without a model's files: `words` and the template's own words are short, all else is spelled in bytes.

    As with every byte-level tokenizer, other tokens than those it encodes to decode to the same word.
    """
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([_MARKUP, *words, " ".join(words)], trainer)
    start, end = _SPECIAL_TOKENS
    tokenizer = Tokenizer(
        core,
        special_tokens={"bos_token": start, "eos_token": end},
        stop_ids=frozenset({_SPECIAL_TOKENS.index(end)}),  # special tokens get the first ids, in their order
    )
    source = THINKING_TEMPLATE.read_text(encoding="utf-8")
    return ChatText(
        tokenizer=tokenizer,
        template=ChatTemplate(source, tokenizer.special_tokens),
        parser=parser_for(source),
    )
