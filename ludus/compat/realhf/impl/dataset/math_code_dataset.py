"""Rows of mathematics and programs, where `realhf.impl.dataset` has them."""

from ludus.compat.realhf.math_code import load_metadata

__all__ = ["load_metadata"]
