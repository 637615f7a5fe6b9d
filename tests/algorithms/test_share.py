from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms.pack import REPLAYED, PackedRow, TrainSequence, pack
from ludus.algorithms.share import FILLER, TOKEN_BLOCK, WHOLE_ROW, RowPart, share_rows


def row(num_tokens: int) -> PackedRow:
    ids = tuple(range(num_tokens + 1))
    one = TrainSequence(ids, (num_tokens,), (1.0,), (1.0,), (-1.0,), (0,), (1.0,))
    (packed,) = pack([one], row_tokens=num_tokens)
    return packed


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 7))
def test_every_row_is_in_one_share_and_rounds_are_even(lengths: list[int], num_shares: int) -> None:
    """All shares are equally long; what fills them trains nothing; no round has a row longer than one before it has."""
    shares = share_rows([row(length) for length in lengths], num_shares)
    assert len(shares) == num_shares
    assert {len(share) for share in shares} == {-(-len(lengths) // num_shares)}
    trained = [len(each.token_ids) for share in shares for each in share if each.target_ids]
    assert sorted(trained) == sorted(lengths)
    assert all(each is FILLER for share in shares for each in share if not each.target_ids)
    rounds = [[len(each.token_ids) for each in members if each.target_ids] for members in zip(*shares, strict=True)]
    for earlier, later in pairwise(rounds):
        assert min(earlier) >= max(later)


def test_rows_are_balanced_by_length() -> None:
    """Two ranks get one long row each, and neither always the longer one."""
    shares = share_rows([row(length) for length in (10, 80, 20, 90)], 2)
    assert [[len(each.token_ids) for each in share] for share in shares] == [[90, 10], [80, 20]]


@given(st.integers(1, 300), st.integers(1, 5), st.randoms(use_true_random=False))
def test_parts_of_a_row_are_equal_and_have_every_target_once(num_tokens: int, num_parts: int, rng: Random) -> None:
    """A target is where its source is; parts follow each other without gaps and cover the row."""
    targets = sorted(rng.sample(range(1, num_tokens + 1), rng.randint(1, num_tokens)))
    whole = TrainSequence.plain(range(num_tokens + 1), targets)
    (packed,) = pack(
        [replace(whole, turns=whole.target_idx, origins=(REPLAYED,) * len(targets))], row_tokens=num_tokens
    )
    spans = [RowPart(index, num_parts).span(len(packed.token_ids)) for index in range(num_parts)]
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert len({span.stop - span.start for span in spans}) == 1
    assert spans[-1].stop - spans[-1].start - TOKEN_BLOCK < len(packed.token_ids) <= spans[-1].stop
    found: list[int] = []
    for index, span in enumerate(spans):
        part = RowPart(index, num_parts).of(packed)
        assert part.token_ids == packed.token_ids and all(
            each in range(span.start, span.stop) for each in part.source_idx
        )
        assert part.turns is not None and len(part.turns) == len(part.origins) == len(part.target_ids)
        found += part.turns
    assert tuple(found) == packed.turns


def test_a_whole_row_is_one_part() -> None:
    """Nothing is copied where nothing is cut."""
    packed = row(20)
    assert WHOLE_ROW.of(packed) is packed and WHOLE_ROW.span(20) == slice(0, TOKEN_BLOCK)
