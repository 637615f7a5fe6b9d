"""Values of a list's items are found again when a longer list begins with them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ludus.text.prefix_memo import NUM_KEPT, PrefixMemo, around_difference, num_same


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=6), max_size=3 * NUM_KEPT))
def test_values_are_those_of_the_items(lists: list[list[str]]) -> None:
    """Whatever was remembered, the known values are those that the first items are worth."""
    prefixes: PrefixMemo[str, str] = PrefixMemo()
    for items in lists:
        values = prefixes.known(items)
        assert values == [item.upper() for item in items[: len(values)]]
        values += [item.upper() for item in items[len(values) :]]
        prefixes.remember(items, values)
        assert prefixes.known([*items, "c"]) == values


def test_lists_that_take_turns_are_all_kept() -> None:
    """As many conversations as are kept can go on side by side; of more, the longest unused is forgotten."""
    prefixes: PrefixMemo[str, int] = PrefixMemo()
    for length in (1, 2, 3):
        for first in range(NUM_KEPT):
            assert len(prefixes.known([str(first)] * length)) == length - 1
            prefixes.remember([str(first)] * length, [0] * length)
    prefixes.remember(["new"], [0])
    assert prefixes.known(["0"]) == []
    assert prefixes.known(["1"]) == [0]


def test_a_change_anywhere_is_noticed() -> None:
    """Only what stands before the first difference is known."""
    prefixes: PrefixMemo[str, int] = PrefixMemo()
    prefixes.remember("abcd", [1, 2, 3, 4])
    assert prefixes.known("abXd") == [1, 2]
    assert prefixes.known("Xbcd") == []
    assert prefixes.known("ab") == [1, 2]


def test_where_texts_part() -> None:
    """Of two texts the beginning that both share is known, and what stands around its end."""
    assert (num_same("abc", "abd"), num_same("ab", "abc"), num_same("", "a"), num_same((1, 2), (1, 2))) == (2, 2, 0, 2)
    assert around_difference("0123456789", "01234x", 2) == ("3456", "34x")
