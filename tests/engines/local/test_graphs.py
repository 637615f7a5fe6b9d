"""The bookkeeping of captured steps; what they compute is in interpreted.py, and on a card in tests/gpu."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.local.graphs import choose_capture, padded_size

CPU = torch.device("cpu")


def test_the_cpu_has_no_graphs() -> None:
    """Steps on the processor run as they are."""
    assert choose_capture(CPU) is None


@given(num_rows=st.integers(1, 9000))
def test_sizes_hold_their_rows_and_are_few(num_rows: int) -> None:
    """A step is filled up to one of a few sizes, above 64 rows by at most a half; sizes are sizes themselves."""
    size = padded_size(num_rows)
    assert num_rows <= size < (num_rows * 3 / 2 if num_rows > 64 else num_rows * 2) and padded_size(size) == size
    assert len({padded_size(each) for each in range(1, 2049)}) == 17
