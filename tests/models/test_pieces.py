from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.models.pieces import Piece, overlap, shape_of

SHAPE = (7, 5)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    def span(size: int) -> slice:
        start = draw(st.integers(0, size))
        return slice(start, draw(st.integers(start, size)))

    return tuple(span(size) for size in SHAPE[: draw(st.integers(1, 2))])


@given(pieces(), pieces())
def test_what_two_pieces_share_is_the_same_in_both(own: Piece, other: Piece) -> None:
    """Counted from the beginning of each; it is all that is in both, and none if nothing is."""
    numbers = torch.arange(35).view(SHAPE)
    assert numbers[own].shape == shape_of(own, SHAPE)
    shared = set(numbers[own].flatten().tolist()) & set(numbers[other].flatten().tolist())
    both = overlap(own, other, SHAPE)
    if both is None:
        assert not shared
        return
    assert torch.equal(numbers[own][both[0]], numbers[other][both[1]])
    assert set(numbers[own][both[0]].flatten().tolist()) == shared
