"""Long answers of tools: cut to characters and to tokens, at the side that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.agents.tools.answer import ToolLimits, TruncateSide, shorten
from ludus.text.tokenizer import Tokenizer

SIDES: tuple[TruncateSide, ...] = ("left", "middle", "right")


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@pytest.mark.parametrize(
    ("side", "short"),
    [
        ("left", "(truncated)...JKLMNOPQRSTUVWXY"),
        ("middle", "01234567...(truncated)...RSTUVWXY"),
        ("right", "0123456789ABCDEF...(truncated)"),
    ],
)
def test_characters_are_cut_at_the_side_asked_for(side: TruncateSide, short: str) -> None:
    """As verl 0.9 names them: `left` cuts off the left. The mark comes on top of the length."""
    limits = ToolLimits(max_response_length=16, truncate_side=side)
    text = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXY"
    assert shorten(text, limits, None) == short
    assert shorten(text[:16], limits, None) == text[:16]


@pytest.mark.parametrize("side", SIDES)
def test_a_text_of_any_length_is_cut_quickly(side: TruncateSide, tokenizer: Tokenizer) -> None:
    """Ten million characters are never tokenized."""
    before = tokenizer.num_encoded_chars
    short = shorten("the quick brown fox " * 500_000, ToolLimits(max_response_tokens=20, truncate_side=side), tokenizer)
    assert 15 <= len(tokenizer.encode(short)) <= 20 and "(truncated)" in short
    assert tokenizer.num_encoded_chars - before < 100_000


@given(text=st.text(max_size=300), most=st.integers(min_value=1, max_value=40), side=st.sampled_from(SIDES))
def test_tokens_never_exceed_their_limit(text: str, most: int, side: TruncateSide, tokenizer_folder: Path) -> None:
    """Whatever the text and the side; and a text that fits stays as it is."""
    tokenizer = _CACHE.setdefault(tokenizer_folder, Tokenizer.load(tokenizer_folder))
    short = shorten(text, ToolLimits(max_response_tokens=most, truncate_side=side), tokenizer)
    assert len(tokenizer.encode(short)) <= most
    if len(tokenizer.encode(text)) <= most:
        assert short == text


_CACHE: dict[Path, Tokenizer] = {}
