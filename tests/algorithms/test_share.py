from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms.pack import PackedRow, TrainSequence, pack
from ludus.algorithms.share import FILLER, share_rows


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
