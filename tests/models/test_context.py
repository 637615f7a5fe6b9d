from __future__ import annotations

import pytest

from ludus.errors import UserError
from ludus.models.context import HeadShares


@pytest.mark.parametrize(
    ("heads", "key_heads", "size", "expected"),
    [
        (32, 8, 4, HeadShares((8,) * 4, (2,) * 4, 1)),
        # each process has one of two key heads, with half of its queries
        (8, 2, 4, HeadShares((2,) * 4, (1,) * 4, 2)),
        (8, 8, 2, HeadShares((4, 4), (4, 4), 1)),
        # no way of cutting them is equal, so keys are not repeated for it
        (9, 3, 2, HeadShares((6, 3), (2, 1), 1)),
        (9, 3, 4, HeadShares((3, 2, 2, 2), (3, 2, 2, 2), 3)),
        (12, 2, 3, HeadShares((4, 4, 4), (2, 2, 2), 3)),
    ],
)
def test_heads_are_shared_in_whole_groups(heads: int, key_heads: int, size: int, expected: HeadShares) -> None:
    """As equal as can be; keys are repeated only where that makes shares equal, or gives everybody some."""
    shares = HeadShares.of(heads, key_heads, size)
    assert shares == expected
    assert sum(shares.queries) == heads and sum(shares.keys) == key_heads * shares.repeats
    assert len({queries / keys for queries, keys in zip(shares.queries, shares.keys, strict=True)}) == 1


def test_more_processes_than_heads_are_refused() -> None:
    """The error names the key and the most it may be."""
    with pytest.raises(UserError, match=r"trainer\.context_parallel=8 .* has 4; set it to 4 at most"):
        HeadShares.of(4, 2, 8)
