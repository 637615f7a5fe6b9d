"""Text leaves as its tokens come, and adds up to what decoding everything at once gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ludus.text.stream import Detokenizer
from ludus.text.tokenizer import Tokenizer


def streamed(tokenizer: Tokenizer, chunks: list[list[int]], *, skip_special: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [detokenizer.feed(chunk) for chunk in chunks] + [detokenizer.finish()]


@given(ids=st.lists(st.lists(st.integers(0, 399), max_size=4), max_size=30), skip_special=st.booleans())
def test_any_ids(tokenizer: Tokenizer, ids: list[list[int]], skip_special: bool) -> None:
    """The pieces of any ids, broken characters and special tokens included, equal decoding them at once."""
    whole = tokenizer.decode([idx for chunk in ids for idx in chunk], skip_special=skip_special)
    assert "".join(streamed(tokenizer, ids, skip_special=skip_special)) == whole


@given(st.text(alphabet=st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=30))
def test_whole_characters_only(tokenizer: Tokenizer, text: str) -> None:
    """Each piece of a text is whole characters, and no character waits once its last token has come."""
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, [[idx] for idx in ids], skip_special=True)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=True)
    if "\ufffd" not in text:
        assert pieces[-1] == ""


def test_character_of_several_tokens(tokenizer: Tokenizer) -> None:
    """Nothing leaves while a character is open; an answer that ends in one shows the replacement character."""
    ids = tokenizer.encode("😀")
    assert len(ids) == 4
    assert streamed(tokenizer, [[idx] for idx in ids], skip_special=True) == ["", "", "", "😀", ""]
    assert streamed(tokenizer, [[idx] for idx in ids[:-1]], skip_special=True)[-1] == "\ufffd"


class CountingTokenizer(Tokenizer):
    """Counts the ids that it decodes."""

    num_decoded = 0

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        self.num_decoded += len(ids)
        return super().decode(ids, skip_special=skip_special)


def test_garbage_stays_linear(tokenizer_folder: Path) -> None:
    """Bytes that never become a character are not decoded again with each new one."""
    tokenizer = CountingTokenizer.load(tokenizer_folder)
    assert isinstance(tokenizer, CountingTokenizer)
    ids = [tokenizer.encode("😀")[1]] * 1000
    whole = tokenizer.decode(ids)
    assert "".join(streamed(tokenizer, [[idx] for idx in ids], skip_special=True)) == whole
    assert tokenizer.num_decoded < 10 * len(ids)


def byte_fallback_tokenizer() -> Tokenizer:
    vocab = {"▁a": 0, "b": 1, "<unk>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    decoders = tokenizers.decoders
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(core, special_tokens={}, stop_ids=frozenset())


SNOWMAN = [3 + byte for byte in "☃".encode()]


@given(st.lists(st.sampled_from([[0], [1], SNOWMAN, SNOWMAN[:2], [3 + 0xFF], [0, 0]]), max_size=20))
def test_byte_fallback(ids: list[list[int]]) -> None:
    """With raw byte tokens, whose text depends on the whole run of them, the pieces still add up."""
    tokenizer = byte_fallback_tokenizer()
    singles = [[idx] for chunk in ids for idx in chunk]
    whole = tokenizer.decode([idx for (idx,) in singles])
    assert "".join(streamed(tokenizer, singles, skip_special=True)) == whole
    assert "".join(streamed(tokenizer, ids, skip_special=True)) == whole


def test_first_blank_is_the_decoders() -> None:
    """A decoder that drops the blank of the first word drops it once, not with each piece."""
    pieces = streamed(byte_fallback_tokenizer(), [[0], [0], [1]], skip_special=True)
    assert pieces == ["a", " a", "b", ""]
