"""Random answers for a check's engine: words, sometimes in tokens that the tokenizer would not produce.

Knows: a tokenizer, random numbers.  Knows not: what is checked.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterable, Sequence

from ludus.text.tokenizer import Tokenizer

WORDS = ("stone", "corner", "of", "a", "wall", "perhaps", "sum", "is", "größe", "now", "look", "so")
_SPELLED = 0.2
"""Share of the words that are sampled letter by letter."""


def some_words(rng: random.Random) -> str:
    """One to five random words."""
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, 6)))


def sampled_ids(rng: random.Random, tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids that decode to `text` and a space after it; in places they differ from its encoding."""
    pieces: list[str] = []
    for word in text.split(" "):
        # Byte-level tokenizers attach the space to the next word.
        pieces += [*(list(word) if rng.random() < _SPELLED else [word]), " "]
    return [token for piece in pieces for token in tokenizer.encode(piece)]


def rng_of(prompt_ids: Sequence[int], seed: object) -> random.Random:
    """A random generator seeded by the prompt's tokens and the seed."""
    return random.Random(f"{seed}/{hashlib.sha256(array('q', prompt_ids).tobytes()).hexdigest()}")


def digest(rows: Iterable[array[int] | array[float]]) -> str:
    """The digest of rows of numbers, including their lengths."""
    found = hashlib.sha256()
    for row in rows:
        found.update(len(row).to_bytes(8, "little"))
        found.update(row.tobytes())
    return found.hexdigest()[:16]
