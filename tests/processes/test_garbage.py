"""Searches for garbage are put off within a block, and are as they were behind it."""

from __future__ import annotations

import gc

import pytest

from ludus.processes.garbage import collecting_later


def test_nothing_is_searched_within_the_block() -> None:
    """Also within another, and where the block raises; who had switched it off himself keeps that."""
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collecting_later():
        with collecting_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with collecting_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
