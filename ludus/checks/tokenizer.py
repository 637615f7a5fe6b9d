"""Makes chat text without a model: a byte-level tokenizer, trained on a few words, and a template.

Knows: the tokenizers package, `ludus.text`.  Knows not: conversations.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources.abc import Traversable

import tokenizers

from ludus.text.chat import ChatText
from ludus.text.parse import parser_for
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
"""They have the first ids, in this order."""


def chat_of(texts: Iterable[str], template: Traversable, *, vocab_size: int) -> ChatText:
    """Chat text under a template, without a model's files; `train_core` says what becomes of the texts."""
    start, end = SPECIAL_TOKENS
    tokenizer = Tokenizer(
        train_core(texts, vocab_size=vocab_size),
        special_tokens={"bos_token": start, "eos_token": end},
        stop_ids=frozenset({SPECIAL_TOKENS.index(end)}),
    )
    source = template.read_text(encoding="utf-8")
    return ChatText(tokenizer, ChatTemplate(source, tokenizer.special_tokens), parser_for(source))


def train_core(texts: Iterable[str], *, vocab_size: int) -> tokenizers.Tokenizer:
    """A tokenizer with short encodings for the given texts, and one token a byte for everything else; 258 ids are the
    bytes and the special tokens.

    As with every byte-level tokenizer, a word may also be decoded from tokens other than its encoding.
    """
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core
