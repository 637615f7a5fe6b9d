"""Tokenizers that no model brings: byte-level ones, trained on a few words when they are needed.

Knows: the tokenizers package.  Knows not: templates, what is said with them.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
"""They have the first ids, in this order."""


def train_core(texts: Iterable[str], *, vocab_size: int) -> tokenizers.Tokenizer:
    """What stands in the texts is short, everything else takes a token a byte; 258 ids are the bytes and the marks.

    As with every byte-level tokenizer, other tokens than those it encodes to decode to the same word.
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
